"""DistZSL: data of its tables."""
