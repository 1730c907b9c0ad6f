"""Commands of pages."""

SHARED = ("live_page", "track")
"""Modules that are no command. A further file of this folder is the command of its name."""
