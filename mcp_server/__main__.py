"""`python -m mcp_server` serves MCP on stdio."""

from mcp_server.server import serve

if __name__ == "__main__":
    serve()
