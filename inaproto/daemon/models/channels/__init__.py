"""Messages with arrays between neighbours of a tree, over streams or queue pairs."""
