"""Joins a memory fault that a tool saw with the package: launch, argument, expression, producer. Pure."""
