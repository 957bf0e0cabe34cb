"""Measurements of what the project promises; each module says what it prints."""
