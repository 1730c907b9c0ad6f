"""Readers of files: tables, feature files, images, texts; and the cache of decoded arrays."""
