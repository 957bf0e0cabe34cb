"""What clients put into every session's context: names, schemas, texts, and how many bytes they take."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.cli.parameters import parameters_of
from mcp_server.diagnosis.next_steps import next_steps
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.families import FAMILIES, Family
from mcp_server.model import (
    CATEGORIES,
    Category,
    CommandWorkload,
    Component,
    ExportedWorkload,
    PackageWorkload,
    ScriptWorkload,
    TensorSpec,
    Workload,
)
from mcp_server.operations.arguments import RUNS_USER_CODE, validated
from mcp_server.operations.table import OPERATIONS, command_line
from mcp_server.server.resources import INSTRUCTIONS
from mcp_server.server.tools import compact
from mcp_server.tools.context import Context
from mcp_server.tools.explain_error import explain_error
from tests.server.snapshot import GOLD, text_of, tools

MOST_SCHEMA_BYTES = 19 * 1024
MOST_BYTES = 26 * 1024
MOST_INSTRUCTION_BYTES = 2048


@pytest.fixture(scope="module")
def listed() -> list[dict[str, Any]]:
    return tools()


def test_the_list_is_pinned(listed: list[dict[str, Any]]) -> None:
    """A change of any name, schema or text shows in review: `python -m tests.server.snapshot` accepts it."""
    assert text_of(listed) == GOLD.read_text()


def test_the_list_is_small(listed: list[dict[str, Any]]) -> None:
    """All input schemas fit 19 KB, the whole list 26 KB, the instructions 2 KB."""
    assert sum(len(compact(tool["inputSchema"]).encode()) for tool in listed) <= MOST_SCHEMA_BYTES
    assert len(compact(listed).encode()) <= MOST_BYTES
    assert len(INSTRUCTIONS.encode()) <= MOST_INSTRUCTION_BYTES


def test_every_property_is_described(listed: list[dict[str, Any]]) -> None:
    """Clients that show only the description still show each default and range."""
    for tool in listed:
        assert tool["inputSchema"]["additionalProperties"] is False
        for name, schema in tool["inputSchema"]["properties"].items():
            said = schema["description"]
            default = schema.get("default")
            assert default is None or str(default).lower() in said.lower(), (tool["name"], name)
            assert "maximum" not in schema or str(schema["maximum"]) in said, (tool["name"], name)


def test_every_tool_is_annotated(listed: list[dict[str, Any]]) -> None:
    """All four hints are set; what runs the user's program never claims to be read-only."""
    runs = {operation.name for operation in OPERATIONS if operation.hints is RUNS_USER_CODE}
    for tool in listed:
        hints = tool["annotations"]
        assert len(hints) == 4
        assert (tool["name"] in runs) <= (not hints["readOnlyHint"] and hints["destructiveHint"])


def test_every_text_names_only_tools_that_exist(listed: list[dict[str, Any]]) -> None:
    """A text that sends the agent to the next tool names one of this list."""
    known = {tool["name"] for tool in listed}
    texts = " ".join([INSTRUCTIONS, *(tool["description"] for tool in listed)])
    verbs = {name.split("_")[0] for name in [*known, "locate_fault", "compare_with_eager"]}
    named = {word for word in re.findall(r"[a-z]+(?:_[a-z]+)+", texts) if word.split("_")[0] in verbs}
    arguments = {name for tool in listed for name in tool["inputSchema"]["properties"]}
    assert named <= known | arguments


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.id)
def test_the_next_call_of_an_explanation_is_valid(family: Family, tmp_path: Path) -> None:
    """Each error family's suggested call validates against the tool's schema, and so does the shell line."""
    context = Context(directory=tmp_path, python=Path(sys.executable))
    explanation = anyio.run(partial(explain_error, context, text=family.example))
    by_name = {operation.name: operation for operation in OPERATIONS}
    step = explanation.next
    model = by_name[step.tool].arguments
    validated(model, step.arguments)
    options = {name for parameter in parameters_of(model) for name in spelled(parameter)}
    words = shlex.split(command_line(step))
    assert {word for word in words if word.startswith("--")} <= options


def spelled(parameter: inspect.Parameter) -> list[str]:
    """The option names of a command's parameter. In an annotation typer keeps the first one as `default`."""
    info = parameter.annotation.__metadata__[0]
    declared = [info.default, *(info.param_decls or ())]
    return [name for names in declared if isinstance(names, str) for name in names.split("/")]


WORKLOADS: tuple[Workload, ...] = (
    ScriptWorkload(script=Path("a.py"), args=["-v"]),
    PackageWorkload(package=Path("m.pt2"), inputs=[TensorSpec(shape=[2])]),
    ExportedWorkload(exported=Path("e.pt2"), inputs=Path("b.pt")),
    CommandWorkload(argv=["host", "m.pt2"]),
)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.kind)
@pytest.mark.parametrize("category", CATEGORIES)
def test_the_next_step_of_a_verdict_is_valid(category: Category, workload: Workload) -> None:
    """Whatever the category and the workload, the suggested call names a tool and validates against it."""
    by_name = {operation.name: operation for operation in OPERATIONS}
    guilty = Component(kind="kernel", name="kernel", launch_index=3)
    best = Suspect(category, guilty, "summary", CausalLevel.CALL)
    for step in next_steps(best, DiagnosisState(workload, 10)):
        validated(by_name[step.tool].arguments, step.arguments)
