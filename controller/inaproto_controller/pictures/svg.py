"""Pictures as SVG text that can stand within a page, several of them, and are the same on each run."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

_LOOK: Final[Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "inaproto",
    "text.parse_math": False,  # names of people's jobs are no formulas
}


@contextmanager
def look() -> Iterator[None]:
    with mpl.rc_context(_LOOK):
        yield


def text_of(figure: Figure) -> str:
    """A whole SVG document. To be called within ``look``."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return file.getvalue()


def within_page(document: str, name: str) -> str:
    """The element alone; its ids begin with ``name``, so that pictures of one page do not share any."""
    element = document[document.index("<svg ") :].replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)
    element = re.sub(r"\sid=\"", f' id="{name}-', element)
    element = element.replace('xlink:href="#', f'xlink:href="#{name}-')
    return element.replace("url(#", f"url(#{name}-")
