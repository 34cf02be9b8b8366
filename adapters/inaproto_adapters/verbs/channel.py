"""Descriptors by which a device tells of completions and of what happens to it."""

from __future__ import annotations

import os
from typing import Any, Final

from inaproto_adapters.verbs.library import verbs

_EVENT_LINK: Final = "anon_inode:[infinibandevent]"


def open_channel(context: Any) -> tuple[Any, int]:
    """A completion channel and its descriptor, which older versions of pyverbs do not tell."""
    before = event_descriptors()
    channel = verbs("cq").CompChannel(context)
    fd = getattr(channel, "fd", None)
    if fd is None:
        (fd,) = event_descriptors() - before
    os.set_blocking(fd, False)
    return channel, fd


def event_descriptors() -> set[int]:
    """Those that this process has, of all devices."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == _EVENT_LINK:
                found.add(int(name))
        except OSError:
            continue  # that of the listing itself
    return found
