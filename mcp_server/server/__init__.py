"""The MCP server: what a client sees of the operations. Nothing is decided here."""
