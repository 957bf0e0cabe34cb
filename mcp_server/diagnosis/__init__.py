"""Diagnosis: a state of observations, causes that explain them, and what to observe next."""
