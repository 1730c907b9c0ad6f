"""The command: thin, everything it does can be done from Python."""

SHARED = (
    "bars",
    "console",
    "data",
    "learn",
    "logs",
    "main",
    "options",
    "predict",
    "progress",
    "settings",
    "start",
    "texts",
    "watching",
)
"""Modules that ``main`` lists, or that are no command. A further file of this folder is the command
of its name."""
