"""Shrinks an exported program while it still fails, and writes what is left as one plain script."""
