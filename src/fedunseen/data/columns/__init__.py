"""A table's columns: what they are, and how each becomes features.

``treatment``: the numbers. ``texts``: those of a sentence encoder. ``settings``: what an experiment
states. ``applied``: a whole table. ``first_look``: what ``init`` suggests for a table, and a
classifier for a data frame.
"""

from fedunseen.data.columns.applied import Examples, Treatment
from fedunseen.data.columns.settings import KINDS, Column, Kind

__all__ = ["KINDS", "Column", "Examples", "Kind", "Treatment"]
