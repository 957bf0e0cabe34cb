"""Causes: one module per category of verdict. Each reads the state and yields hypotheses."""
