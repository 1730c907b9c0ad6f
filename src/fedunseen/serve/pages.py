"""The pages that a service shows: whole in one file, so that they need no other, and no network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment


@cache
def page(name: str) -> str:
    """Return a page's HTML, with the rules of style that all of them share in it."""
    folder = files("fedunseen.serve")
    style = folder.joinpath("style.css").read_text("utf-8")
    return folder.joinpath(name).read_text("utf-8").replace("{{ style }}", style.rstrip())


def reference(schema: Mapping[str, Any]) -> str:
    """Return the page of a service's OpenAPI schema: each request, what it takes, and what it answers."""
    return Environment(autoescape=True).from_string(page("reference.html")).render(schema=schema)
