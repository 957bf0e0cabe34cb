"""A compile that fails is put on the operator, or on the file of a kernel, that its error names."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.causes import index_out_of_bounds, log_text
from mcp_server.diagnosis.observe.static import ReadGeneratedKernel
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.model import ScriptWorkload
from mcp_server.runtime.context import Context
from tests.diagnosis.support import capture, phase, run

SOURCE = (
    "import triton\n@triton.jit\ndef triton_poi_fused_index_2(in_ptr0):\n    tl.device_assert(tmp17 < ks0)\n"
)
NAME = f"c{'a' * 50}.py"
SAID = (
    "{}:4: unknown: block: [0,0,0], thread: [3,0,0] Assertion `index out of bounds: 0 <= tmp17 < ks0` failed."
)


def case_of(path: Path) -> DiagnosisState:
    """A program that failed at a kernel in that file."""
    case = DiagnosisState(None)
    case.runs["script"] = run("script", SAID.format(path))
    return case


def read(case: DiagnosisState, directory: Path) -> float:
    action = ReadGeneratedKernel()
    anyio.run(action.act, case, Context(directory, Path("python")))
    return action.gain(case, ())


def test_the_kernel_and_its_line(tmp_path: Path) -> None:
    """The verdict has the kernel's name and the text of the assertion's line."""
    path = tmp_path / NAME
    path.write_text(SOURCE)
    case = case_of(path)
    assert read(case, tmp_path) == 1.0
    (found,) = index_out_of_bounds.detect_generated(case)
    assert (found.guilty.kind, found.guilty.name) == ("kernel", "triton_poi_fused_index_2")
    assert any("device_assert" in evidence.fact for evidence in found.evidence)


@pytest.mark.parametrize(
    "name, text", [("secret.py", SOURCE), (NAME, "PASSWORD = 1\n" * 9), (NAME, ""), (NAME, None)]
)
def test_no_other_file_is_read(tmp_path: Path, name: str, text: str | None) -> None:
    """A path that a program prints is no leave to quote what stands there."""
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    case = case_of(path)
    read(case, tmp_path)
    assert case.generated is None and list(index_out_of_bounds.detect_generated(case)) == []


REFUSED = """triton.compiler.errors.CompilationError: at 3:24:
def tile_kernel(x_ptr, TILE: tl.constexpr):
    row = tl.program_id(0)
    col = row * TILE + tl.arange(0, TILE)
                       ^
arange's range must be a power of 2
"""
PROGRAM = """import triton


@triton.jit
def tile_kernel(x_ptr, TILE: tl.constexpr):
    row = tl.program_id(0)
    col = row * TILE + tl.arange(0, TILE)
"""


def compile_case(script: Path, text: str, **compiled: object) -> DiagnosisState:
    """A program whose compile failed with that text."""
    case = DiagnosisState(ScriptWorkload(script=script))
    case.runs["script"] = run("script", text)
    case.capture = capture(compiles=[phase(1, how="aot_compile", outcome="failed", **compiled)])
    return case


@pytest.mark.parametrize("copies, line", [(1, 7), (2, None)])
def test_a_kernel_of_the_user_that_does_not_compile(tmp_path: Path, copies: int, line: int | None) -> None:
    """The line counts from the `def` in the program's own file, where there is one such kernel only."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM * copies)
    case = compile_case(script, REFUSED)
    assert read(case, tmp_path) == 1.0
    (found,) = log_text.detect_from_log(case)
    assert (found.guilty.kind, found.guilty.name) == ("kernel", "tile_kernel")
    places = [(at.file, at.line, at.code) for at in found.guilty.model_locations if at.file == str(script)]
    assert places == ([(str(script), line, "col = row * TILE + tl.arange(0, TILE)")] if line else [])


def test_lines_of_the_model_that_index_stand_beside_the_generated_kernel(tmp_path: Path) -> None:
    """Of the operators that the kernel fuses, those that index, from the program that was kept."""
    stack = '  File "{}", line {}, in forward\n    {}'
    places = [("aten.mul.Tensor", 3, "x = x * 2"), ("aten.index.Tensor", 5, "table[row]")]
    nodes = [
        {"target": f"torch.ops.{op}", "metadata": {"stack_trace": stack.format("/srv/model.py", line, code)}}
        for op, line, code in places
    ]
    program = tmp_path / "exported.pt2"
    with zipfile.ZipFile(program, "w") as archive:
        graph = {"graph_module": {"graph": {"nodes": nodes}}}
        archive.writestr("exported/models/model.json", json.dumps(graph))
    path = tmp_path / NAME
    path.write_text(SOURCE)
    case = compile_case(tmp_path / "program.py", SAID.format(path), exported=program)
    read(case, tmp_path)
    (found,) = index_out_of_bounds.detect_generated(case)
    assert [(at.line, at.code) for at in found.guilty.model_locations] == [(5, "table[row]")]


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
