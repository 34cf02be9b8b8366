"""The evaluation of MINA's paper, computed anew: which runs its figures need, and what they are to give.

Pure: runs are data, what they find is data, and which of them runs where is the caller's (``inaproto
reproduce mina``). The requests are the published streams; what depends on the draws of candidate trees is a
mean over seeds.
"""
