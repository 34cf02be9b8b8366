"""Where promises are kept: SQLite, or PostgreSQL for a pair of controllers."""
