"""``python -m inaproto``: the command, where the environment's ``bin`` is not on the path."""

from inaproto.cli import main

main()
