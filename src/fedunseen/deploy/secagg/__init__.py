"""Secure aggregation: parties hide what they send under masks that cancel in the sum.

A coordinator may lie, and up to c parties may work with it: it learns nothing but the sum that
honest parties agreed to. ``enrolment`` lists the parties and their keys, ``plan`` is what every
party signs before a run, ``ledger`` is what a party must keep over restarts, ``party`` and
``server`` are the two sides, ``driver`` runs one sum over any transport, ``ring`` encodes numbers
as ring elements, ``masks`` encodes replies.
"""
