"""The MCP server: how a client sees the operations. Nothing is decided here."""
