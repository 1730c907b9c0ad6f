"""The experiment file, the path of a run, and finished runs."""
