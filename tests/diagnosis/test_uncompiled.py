"""The operator at which a compile failed."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.causes import log_text
from mcp_server.diagnosis.state import DiagnosisState
from tests.diagnosis.support import capture, phase, run

TEXT = "RuntimeError: Unsupported return type <class 'torch.SymIntType'>"
STACK = '  File "/app/model.py", line 9, in forward\n    run = longest(tokens)\n'
AT = {"operator": "desk.longest.default", "stack": STACK}
LINE = {"file": "/app/build.py", "line": 63, "code": "aoti_compile_and_package(program)"}
LOG = [
    "Traceback (most recent call last):",
    '  File "/app/build.py", line 63, in build',
    "    aoti_compile_and_package(program)",
    '  File "/v/site-packages/torch/_inductor/ir.py", line 9154, in handle_single_output',
    '    raise RuntimeError(f"Unsupported return type {type(return_type)}")',
    f"torch._inductor.exc.InductorError: {TEXT}",
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    "Traceback (most recent call last):",
    '  File "/app/build.py", line 65, in build',
    "    raise BuildError(variant) from why",
    "BuildError: variant 'counted' could not be built",
]


def stopped(*at: dict[str, str], text: str = TEXT) -> DiagnosisState:
    """A program whose compile failed at these operators, and that passed the error on."""
    case = DiagnosisState(None)
    error = {"type": "torch._inductor.exc.InductorError", "text": text, "stopped_at": list(at)}
    compiled = phase(5, how="aoti_compile_and_package", outcome="failed", error=error, stack=[LINE])
    case.capture = capture(compiles=[compiled])
    case.runs["script"] = run("script", "\n".join(LOG))
    return case


def test_the_operator_is_named_with_its_line() -> None:
    """Before the line that compiles; the program's own error over it is no check of its results."""
    (found,) = log_text.detect_from_log(stopped(AT))
    assert (found.category, found.guilty.kind, found.guilty.name) == (
        "compile_failure",
        "op",
        "desk::longest",
    )
    assert [line.line for line in found.guilty.model_locations] == [9, 63]
    assert any("the compiler was at desk::longest" in each.fact for each in found.evidence)


@pytest.mark.parametrize(
    "case",
    [
        stopped(),
        stopped(AT, {**AT, "operator": "aten.neg.default"}),
        stopped(AT, text="RuntimeError: another compile"),
    ],
)
def test_no_operator_is_named_where_several_may_be_meant(case: DiagnosisState) -> None:
    """None seen, several fused ones, or a compile with another error: the line of the compile stays."""
    (found,) = log_text.detect_from_log(case)
    assert (found.category, found.guilty.kind) == ("compile_failure", "script")
    assert found.guilty.model_locations[0].line == 63
