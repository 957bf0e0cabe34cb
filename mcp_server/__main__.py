"""`python -m mcp_server` serves MCP on stdio."""

import gc
import sys


def main(tools: str = "") -> None:
    """Serve. Garbage collection is off during the imports: it would take a tenth of the start time."""
    gc.disable()
    from mcp_server.errors import ProblemError
    from mcp_server.server.app import serve

    gc.freeze()
    gc.enable()
    try:
        serve(tools)
    except ProblemError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
