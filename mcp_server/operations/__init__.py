"""The operations that both faces offer: one table, from which the MCP tools and the commands are made."""
