"""Commands of research."""

SHARED = ()
"""Modules that are no command. A further file of this folder is the command of its name."""
