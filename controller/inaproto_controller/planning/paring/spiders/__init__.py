"""PARING's printed algorithm: trees that grow by spiders."""
