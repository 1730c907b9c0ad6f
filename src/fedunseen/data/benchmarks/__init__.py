"""The benchmarks, one file each, and what several of them share."""

SHARED = ("image_benchmark", "proposed_split")
"""Modules that are no benchmark. A further file of this folder is the benchmark of its name."""
