"""Rebuilds a finished package from its own wrapper, with launch probes or sanitizers, without the model."""
