"""The register map of the accelerator, and what is made of it."""
