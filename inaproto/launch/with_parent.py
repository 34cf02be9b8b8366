"""Becomes a command that gets SIGTERM when its parent ends, however that ends (Linux, ``man prctl``).

    python -I -S with_parent.py PID COMMAND ...

``PID`` is the parent's, whose end before this line is reached is noticed, too. Started as a script, without
the site packages: it runs before each process of a cluster or a job.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores, and a command would inherit that
    if os.getppid() == int(parent):
        try:
            os.execv(command[0], command)
        except OSError as error:
            sys.stderr.write(f"{command[0]}: cannot be executed: {error.strerror}\n")
            sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
