"""The command: thin, everything it does can be done from Python."""
