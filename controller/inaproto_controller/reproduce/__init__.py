"""The evaluation of MINA's paper, computed anew: which runs its figures need, and what they are to give."""
