"""Tests of the package reader."""
