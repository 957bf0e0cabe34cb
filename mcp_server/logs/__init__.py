"""Pure parsers: text or a file in, typed facts out. Nothing here starts a process."""
