"""The pages that a service shows: whole in one file, so that they need no other, and no network."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["page"]


def page(name: str) -> str:
    """Return a page's HTML, with the rules of style that all of them share in it."""
    folder = files("fedunseen.serve")
    style = folder.joinpath("style.css").read_text("utf-8")
    return folder.joinpath(name).read_text("utf-8").replace("{{ style }}", style.rstrip())
