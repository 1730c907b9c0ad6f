"""Federations between machines: secure aggregation, engines, credentials, ``host`` and ``join``."""
