"""Interventions: changes of exactly one thing about a failing call, and the result of each."""
