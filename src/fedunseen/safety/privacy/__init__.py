"""Differential privacy of a client's updates and of a sample in summed statistics."""
