"""Sections of the report: a template each, filled in by what ``page.py`` lists.

A Python file of this folder is a section by itself: ``content(facts)`` returns what its
``TEMPLATE`` is given, None where there is nothing to show; ``FOLDED = False`` puts it among the
first ones.
"""

SHARED = ()
"""Modules that are no section."""
