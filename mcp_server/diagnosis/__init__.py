"""The procedure: observations in a case, detectors that read them, a planner that chooses the next."""
