"""Detectors: pure functions from a case to hypotheses, one file per kind of cause."""
