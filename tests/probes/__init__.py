"""Tests of the rebuild of packages, its probes and its journal."""
