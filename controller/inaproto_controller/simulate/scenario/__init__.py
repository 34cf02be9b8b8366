"""What operators ask of the simulator: a scenario in a file, its variants compared, a report."""
