"""Where jobs run, which trees they get, and whose turn it is."""
