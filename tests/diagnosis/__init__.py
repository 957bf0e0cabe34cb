"""Tests of the procedure: detectors, judge, planner and whole diagnoses."""
