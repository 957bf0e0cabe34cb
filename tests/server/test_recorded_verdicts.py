"""Verdicts as an agent gets them: short, and leading to calls and commands that exist.

The recordings are verdicts on failing and healthy programs, as scripts and as packages, from an H200: of each
category and form the longest; `tests/recordings/README.md` says how they were made.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcp_server.model import NextStep, Verdict
from mcp_server.operations.arguments import validated
from mcp_server.operations.table import OPERATIONS, command_line
from tests.recorded import RECORDINGS
from tests.server.command_lines import parse
from tests.server.tokens import LIMIT, tokens

BY_NAME = {operation.name: operation for operation in OPERATIONS}
LINES = (RECORDINGS / "verdicts.jsonl").read_text().splitlines()
RECORDED: list[dict[str, Any]] = [json.loads(line) for line in LINES]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: f"{recorded['form']}-{recorded['case']}")
def test_a_verdict_is_short_and_its_calls_exist(recorded: dict[str, Any]) -> None:
    """At most 1,500 tokens; each next step validates and can be typed; each command of ours parses."""
    verdict = Verdict.model_validate(recorded["verdict"])
    assert tokens(recorded["verdict"]) <= LIMIT
    for step in verdict.next_steps:
        validated(BY_NAME[step.tool].arguments, step.arguments)
        parse(command_line(NextStep.model_validate(step)))
    for item in verdict.evidence:
        if item.command.startswith("aoti-debug "):
            parse(item.command)
