"""What every tool gets: its directory, interpreter, children, the shared import and the steps kept."""
