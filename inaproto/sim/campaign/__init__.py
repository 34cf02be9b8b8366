"""What a campaign can draw, check and must meet, over all kinds of worlds."""
