"""Tests of a symptom given with a workload."""
