"""The in-process engine: every client of a run in this process."""
