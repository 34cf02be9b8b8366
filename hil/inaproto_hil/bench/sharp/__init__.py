"""What the adapter for SHARP costs over a bare C loop on the same library, in the same processes."""
