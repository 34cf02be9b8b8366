"""A wall clock that is wrong in one process alone: the C library's, moved by a number of seconds."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from inaproto.errors import Unsupported

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long wrong_by(void) { const char *text = getenv("WRONG_CLOCK_S"); return text ? atol(text) : 0; }

int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*right)(clockid_t, struct timespec *);
    if (!right) right = dlsym(RTLD_NEXT, "clock_gettime");
    int found = right(id, at);
    if (found == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += wrong_by();
    return found;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def wrong_by(seconds: int, directory: Path) -> dict[str, str]:
    """Variables of a process whose wall clock is ahead; its timers are right. Raises ``Unsupported``."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unsupported("a wrong clock", "there is no C compiler")
    source, library = directory / "wrong_clock.c", directory / "wrong_clock.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "WRONG_CLOCK_S": str(seconds)}
