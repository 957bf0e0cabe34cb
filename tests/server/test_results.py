"""Results as an agent gets them: within the limit of a client, leading to calls and commands that exist.

The recordings are verdicts on failing and healthy programs, as scripts and as packages, from an H200: of each
category and form the longest; `tests/recordings/README.md` says how they were made.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.model import NextStep, Verdict
from mcp_server.operations.arguments import validated
from mcp_server.operations.table import OPERATIONS, command_line
from mcp_server.server.tools import LIMIT, compact, middle_cut, shorten
from tests.recorded import RECORDINGS
from tests.server.agent import MOST_TOKENS, parse, tokens

JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=8), inner, max_size=40),
    max_leaves=200,
)


def test_what_fits_is_untouched() -> None:
    """A result below the limit is passed on as it is, nulls included."""
    result = {"summary": "fine", "guilty": None}
    assert shorten(result) is result


def test_a_long_list_is_cut_and_counted() -> None:
    """The longest list loses its tail; the cut is stated with both counts and where all of it is."""
    result = {"launches": [{"index": n, "kernel": f"kernel_{n}"} for n in range(2000)], "summary": "kept"}
    short = shorten(result, full={"uri": "artifact://job/result.json"})
    shown = len(short["launches"])
    assert 0 < shown < 2000
    assert short["launches"] == result["launches"][:shown]
    assert short["summary"] == "kept"
    assert f"launches: {shown} of 2000 items" in short["shortened"]["cut"]
    assert short["shortened"]["full"]["uri"] == "artifact://job/result.json"


def test_a_long_string_keeps_its_head_and_tail() -> None:
    """60,000 characters of output come back as both ends: the error is usually last."""
    short = shorten({"runs": [{"output": "first" + "x" * 60_000 + "last"}]})
    assert len(compact(short)) <= LIMIT
    assert short["runs"][0]["output"].startswith("first")
    assert short["runs"][0]["output"].endswith("last")
    assert any(
        line.startswith("runs.0.output: ") and "of 60009 characters" in line
        for line in short["shortened"]["cut"]
    )


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=6))
def test_every_result_is_shortened_to_the_limit(result: dict[str, Any]) -> None:
    """Whatever the shape, the limit holds (as far as the note itself fits), and the input is not changed."""
    before = compact(result)
    limit = 1500
    short = shorten(result, limit=limit)
    assert compact(result) == before
    assert short is result or "shortened" in short
    assert len(compact(short)) <= max(limit, _smallest(short))


def _smallest(short: dict[str, Any]) -> int:
    """Size that no rule can undercut: fixed keys, short strings and numbers."""
    return 6_000 if short.get("shortened") else 0


@given(st.text(min_size=1), st.integers(min_value=8, max_value=50))
def test_middle_cut_is_bounded(text: str, keep: int) -> None:
    """The cut text is never longer than asked for."""
    assert len(middle_cut(text, keep)) <= max(keep, 5)


BY_NAME = {operation.name: operation for operation in OPERATIONS}
LINES = (RECORDINGS / "verdicts.jsonl").read_text().splitlines()
RECORDED: list[dict[str, Any]] = [json.loads(line) for line in LINES]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: f"{recorded['form']}-{recorded['case']}")
def test_a_verdict_is_short_and_its_calls_exist(recorded: dict[str, Any]) -> None:
    """At most 1,500 tokens; each next step validates and can be typed; each command of ours parses."""
    verdict = Verdict.model_validate(recorded["verdict"])
    assert tokens(recorded["verdict"]) <= MOST_TOKENS
    for step in verdict.next_steps:
        validated(BY_NAME[step.tool].arguments, step.arguments)
        parse(command_line(NextStep.model_validate(step)))
    for item in verdict.evidence:
        if item.command.startswith("aoti-debug "):
            parse(item.command)
