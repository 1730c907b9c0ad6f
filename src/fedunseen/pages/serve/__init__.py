"""A run at work behind HTTP: the service, and the page on which a model is tried by hand."""

from fedunseen.pages.serve.model import Added, Recognizer

__all__ = ["Added", "Recognizer"]
