"""The only code that imports torch. Runs in the user's interpreter with the standard library alone."""
