"""Rebuilds a package with launch probes or sanitizers, from the package alone."""
