"""Shrinks an exported program while its failure holds, and writes what is left as one plain script."""
