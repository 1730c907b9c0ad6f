"""A federation, its training loop and the callbacks, without an experiment file."""
