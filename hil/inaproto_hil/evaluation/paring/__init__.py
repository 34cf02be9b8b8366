"""The evaluation of PARING's paper (figures 1 to 19), computed anew: ``inaproto reproduce paring``.

Pure, as for MINA: runs are data, what they find is data, and which of them runs where is the caller's.
"""
