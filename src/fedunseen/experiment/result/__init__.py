"""A finished run, read back from its directory."""
