"""A job-level simulation of one decision, fast enough to plan with."""
