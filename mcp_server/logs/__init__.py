"""Pure parsers: they take text or a file and return typed facts. Nothing here starts a process."""
