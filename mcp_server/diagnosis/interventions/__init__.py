"""Interventions: changes of exactly one thing about a failing call, and what came of each."""
