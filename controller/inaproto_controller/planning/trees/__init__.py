"""Which jobs get which aggregation trees."""
