"""Tests of what users read: descriptions, numbers, links, generated pages."""
