"""What commands do, callable from Python: the command itself has options and printing alone."""
