"""How far heuristics are from the best there is, on instances small enough to know it."""
