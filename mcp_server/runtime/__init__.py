"""What every tool gets: its directory, interpreter, children, shared import and finished steps."""
