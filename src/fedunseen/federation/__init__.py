"""A federation, its training loop and the callbacks, without an experiment file."""

ENGINES = {
    "in-process": "fedunseen.federation.in_process:InProcess",
    "buffered": "fedunseen.federation.buffered:Buffered",
}
"""Name -> where the class is: engines whose clients are in this process."""
