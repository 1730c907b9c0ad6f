"""Commands of deploy."""

SHARED = ("metrics", "own_overrides", "texts")
"""Modules that are no command. A further file of this folder is the command of its name."""
