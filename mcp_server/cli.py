"""Entry point of the command line.

Results go to stdout, everything else to stderr. Exit codes are in `faces/exits.py`.
"""

from __future__ import annotations

import sys

from mcp_server.errors import ProblemError
from mcp_server.faces.exits import Exit


def main() -> None:
    """`aoti-debug`: a wrong call ends in a few lines on stderr, never in a traceback."""
    arguments = sys.argv[1:]
    if arguments == ["serve"]:  # without the imports of the other commands: clients wait for the start
        from mcp_server.__main__ import main as serve

        serve()
    else:
        sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Run a command line; its exit code. A tool's name as the server spells it names a command too."""
    from mcp_server.faces.app import app
    from mcp_server.faces.terminal import print_problem

    command = [name.replace("_", "-") for name in arguments[:1]]
    try:
        app([*command, *arguments[1:]], prog_name="aoti-debug")
    except ProblemError as problem:
        print_problem(problem)
        return Exit.PROBLEM
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.PROBLEM
    return Exit.OK
