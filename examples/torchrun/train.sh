#!/bin/sh
# Ranks by torchrun, on one machine: they find rank and size in its variables, and the job's name in its run id.
# A host daemon runs here (inaproto host --help); without one: inaproto run -n 4 -- python SCRIPT
INAPROTO_KEY=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
export INAPROTO_KEY

exec torchrun --standalone --nproc-per-node 4 examples/plain/linear_regression.py "$@"
