"""Tree migration at the controller."""
