"""What jobs of a cluster do over time, operation by operation: no packets, no processes."""
