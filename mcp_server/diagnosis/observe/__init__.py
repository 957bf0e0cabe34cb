"""Observations that the planner can choose. Each runs tools and adds what they saw to the state."""
