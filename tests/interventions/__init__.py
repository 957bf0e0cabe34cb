"""Tests of the interventions."""
