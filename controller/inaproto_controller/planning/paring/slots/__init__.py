"""Trees at the highest rate, slot by slot: greedy, local search, integer program."""
