"""``inaproto run``: the processes of a job on this machine, and the daemons they need (docs/launching.md).

What is decided is in pure modules: who a process is (:mod:`inaproto.launch.plan`), what follows when one
ends or a signal comes (:mod:`inaproto.launch.supervision`), what a line of output becomes
(:mod:`inaproto.launch.labelled_lines`), what is said at the end (:mod:`inaproto.launch.outcome`). Around
them stand processes (:mod:`inaproto.launch.processes`), daemons (:mod:`inaproto.launch.daemons`) and the run
itself (:mod:`inaproto.launch.run`). :mod:`inaproto.launch.keeper` outlives a launcher that is killed.
"""
