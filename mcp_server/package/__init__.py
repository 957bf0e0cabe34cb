"""Reads an AOTInductor package without loading it, running it or trusting it."""
