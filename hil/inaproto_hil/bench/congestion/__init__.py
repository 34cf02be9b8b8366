"""``inaproto bench congestion``: rings through a switch and plain RDMA flows on the same links."""
