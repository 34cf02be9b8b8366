"""What must hold in every control world."""
