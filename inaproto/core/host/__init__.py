"""One host in one job: its ranks, the rings that it is in, and what it holds of its NIC for them."""
