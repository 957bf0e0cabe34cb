"""Failing (and healthy) programs with known answers, and the scorer of what `diagnose` makes of them."""
