"""What the pages of the tasks tell apart: a ``VIEW`` for each."""
