"""Jobs that share one pool of switch memory, by all that decides about it in the product, in virtual time."""
