"""Which hosts a job gets."""
