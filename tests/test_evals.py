"""The evaluations: their shape, and that they agree with the programs that they are about."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.corpus.answers import read_answer
from benchmarks.corpus.validate import CASES

ROOT = Path(__file__).resolve().parent.parent
EVALS = ROOT / "evals"
EVALUATED = sorted(EVALS.glob("*/case.yaml"))
# `claude plugin eval` refuses any other field of a grader (Claude Code 2.1.329).
GRADERS = {
    "regex": {"type", "name", "target", "pattern", "flags", "match", "weight", "arm"},
    "llm": {"type", "name", "criteria", "focus", "weight", "arm"},
    "tool_used": {"type", "name", "tool", "input_match", "min", "max", "weight", "arm"},
}


def tasks() -> list[dict[str, Any]]:
    found = json.loads((EVALS / "evals.json").read_text())
    assert found["skill_name"] == "aoti-debug"
    return list(found["evals"])


def case_of(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


def program_of(path: Path) -> Path:
    return ROOT / "benchmarks" / "corpus" / "cases" / f"{path.parent.name.replace('-', '_')}.py"


def answer_of(path: Path) -> Path:
    return CASES / program_of(path).with_suffix(".yaml").name


def test_queries_are_twenty_each_way() -> None:
    """As many queries that should take the skill as near misses, none twice."""
    queries = json.loads((EVALS / "trigger.json").read_text())
    assert Counter(query["should_trigger"] for query in queries) == {True: 20, False: 20}
    assert all(set(query) == {"query", "should_trigger"} and query["query"].strip() for query in queries)
    assert len({query["query"] for query in queries}) == 40


def test_each_task_is_complete() -> None:
    """Numbered from 1, with a prompt, an expectation, and files that exist and that the prompt names."""
    for number, task in enumerate(tasks(), 1):
        assert set(task) == {"id", "prompt", "expected_output", "files", "expectations"}
        assert task["id"] == number
        assert len(task["expectations"]) >= 2
        assert task["files"]
        assert all((ROOT / name).is_file() and name in task["prompt"] for name in task["files"])


def test_both_formats_hold_the_same_tasks() -> None:
    """Each program has a task and a case."""
    named = {Path(name) for task in tasks() for name in task["files"]}
    assert {program_of(path).relative_to(ROOT) for path in EVALUATED} == named


def test_healthy_programs_are_among_them() -> None:
    """Some tasks are about programs without a fault, and these say so."""
    healthy = {path for path in EVALUATED if read_answer(answer_of(path)).outcome == "no_fault"}
    assert {path for path in EVALUATED if "healthy" in case_of(path)["tags"]} == healthy
    assert len(healthy) >= 3


@pytest.mark.parametrize("path", EVALUATED, ids=lambda path: path.parent.name)
def test_a_case_can_be_loaded(path: Path) -> None:
    """Fields are those that the command takes; the scaffold copies the program that the prompt names."""
    case = case_of(path)
    assert set(case) == {
        "schema_version", "name", "description", "tags", "context", "execution", "graders"
    }  # fmt: skip
    assert (case["schema_version"], case["name"]) == ("1.1", path.parent.name)
    assert set(case["execution"]) == {"prompt", "max_turns", "timeout_seconds", "allowed_tools"}
    assert program_of(path).name in case["execution"]["prompt"]
    scaffold = path.with_name(case["context"]["scaffold_script"])
    assert str(program_of(path).relative_to(ROOT)) in scaffold.read_text()
    assert scaffold.stat().st_mode & 0o100
    for grader in case["graders"]:
        assert set(grader) <= GRADERS[grader["type"]]
    assert len({grader["name"] for grader in case["graders"]}) == len(case["graders"])


@pytest.mark.parametrize("path", EVALUATED, ids=lambda path: path.parent.name)
def test_the_grader_of_the_cause_is_right(path: Path) -> None:
    """The pattern is found in the corpus' own words about the case, and not in an empty phrase."""
    case = case_of(path)
    (grader,) = [grader for grader in case["graders"] if grader["type"] == "regex"]
    pattern = re.compile(grader["pattern"], re.I if "i" in grader["flags"] else 0)
    if "healthy" in case["tags"]:
        assert grader["match"] == "not_contains"
        assert not pattern.search("Nothing is wrong with the program: it runs to its end.")
        return
    answer = answer_of(path).read_text()
    assert pattern.search(answer)
    assert not pattern.search("AOTInductor failed. I could not find out why.")
