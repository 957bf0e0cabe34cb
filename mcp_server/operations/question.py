"""The question to a package that flat arguments ask."""

from __future__ import annotations

from mcp_server.errors import ProblemError
from mcp_server.operations.arguments import InspectArguments
from mcp_server.steps.inspect_package import Question

SUBJECTS = ("launch", "kernel", "buffer", "symbol", "input", "constant", "location", "assertion")


def question_of(given: InspectArguments) -> Question | None:
    """The question, None for the overview. Raises ProblemError for two at once.

    An assertion may come with the kernel that printed it.
    """
    asked = [name for name in SUBJECTS if getattr(given, name) not in ("", -1)]
    if len(asked) > 1 and set(asked) != {"assertion", "kernel"}:
        raise ProblemError(
            "more than one question", value=", ".join(asked), allowed="one of " + ", ".join(SUBJECTS)
        )
    if given.generated_line >= 0 and "assertion" not in asked:
        raise ProblemError("generated_line goes with an assertion")
    if not asked:
        return None
    values = {name: getattr(given, name) for name in asked}
    return Question(**values, generated_line=given.generated_line if given.generated_line >= 0 else None)
