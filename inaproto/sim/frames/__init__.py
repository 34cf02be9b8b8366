"""The world of frames: hosts, links, switches and jobs under weather."""
