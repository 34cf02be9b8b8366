"""What befalls frames: weather, and the named random streams that it is drawn from."""
