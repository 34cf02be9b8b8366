"""The evaluation of MLNet's paper, computed anew."""
