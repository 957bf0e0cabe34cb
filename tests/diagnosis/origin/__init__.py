"""From a bad value to its origin."""
