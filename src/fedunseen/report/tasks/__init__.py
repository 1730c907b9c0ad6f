"""The pages: a file for each task, named after it, with the list of its sections in ``SECTIONS``."""
