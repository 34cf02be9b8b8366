"""Which of the jobs that share a tree's links may use INA for an operation."""
