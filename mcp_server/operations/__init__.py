"""The operations that both faces offer: one table, the source of the MCP tools and the commands."""
