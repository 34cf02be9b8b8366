"""What all ranks of a job ask for alike: by which path it wants to be summed, and whether it may shrink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast, get_args

from inaproto.errors import LocalMisuse
from inaproto.wire.control_messages import PathAsked

PATH_VARIABLE: Final = "INAPROTO_PATH"
PATHS: Final[tuple[str, ...]] = get_args(PathAsked)


@dataclass(frozen=True, slots=True)
class JobWishes:
    """See :func:`inaproto.client.connect`."""

    path: PathAsked = "auto"
    exact_plan: bool = True
    elastic: bool = False


def check_wishes(
    path: object, exact_plan: object, elastic: object, environment: Mapping[str, str]
) -> JobWishes:
    """Without a ``path``, that of the environment; a variable that is empty counts as not set.

    Raises ``LocalMisuse``.
    """
    named = environment.get(PATH_VARIABLE) or "auto"
    where, wanted = (f"${PATH_VARIABLE}", named) if path is None else ("path", path)
    if wanted not in PATHS:
        raise LocalMisuse(f"connect: {where} is {wanted!r:.200}; it must be one of {', '.join(PATHS)}")
    if not isinstance(exact_plan, bool):
        raise LocalMisuse(f"connect: exact_plan is {exact_plan!r:.200}; it must be True or False")
    if not isinstance(elastic, bool):
        raise LocalMisuse(f"connect: elastic is {elastic!r:.200}; it must be True or False")
    return JobWishes(cast("PathAsked", wanted), exact_plan, elastic)
