"""Carries the operations out. Steps are imported when they are called, so that the server starts fast."""
