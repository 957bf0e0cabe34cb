"""The evaluations: their shape, and that they agree with the programs that they are about."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.corpus.answers import Answer
from benchmarks.corpus.validate import select

ROOT = Path(__file__).resolve().parent.parent
EVALS = ROOT / "evals"
TASKS: list[dict[str, Any]] = json.loads((EVALS / "evals.json").read_text())["evals"]
# `claude plugin eval` refuses any other field of a grader (Claude Code 2.1.329).
GRADERS = {
    "regex": {"type", "name", "target", "pattern", "flags", "match", "weight", "arm"},
    "llm": {"type", "name", "criteria", "focus", "weight", "arm"},
    "tool_used": {"type", "name", "tool", "input_match", "min", "max", "weight", "arm"},
}


ANSWERS = {answer.name: answer for answer in select(None)}


def answer_of(task: dict[str, Any]) -> Answer:
    return ANSWERS[Path(task["files"][0]).stem]


def test_queries_are_thirty_each_way() -> None:
    """As many queries that should take the skill as near misses, none twice."""
    queries = json.loads((EVALS / "trigger.json").read_text())
    assert Counter(query["should_trigger"] for query in queries) == {True: 30, False: 30}
    assert all(set(query) == {"query", "should_trigger"} and query["query"].strip() for query in queries)
    assert len({query["query"] for query in queries}) == 60


def test_each_task_is_complete() -> None:
    """Numbered from 1, with a prompt, an expectation, and files that exist and that the prompt names."""
    assert [task["id"] for task in TASKS] == list(range(1, len(TASKS) + 1))
    assert sum(task["healthy"] for task in TASKS) >= 3
    for task in TASKS:
        assert len(task["expectations"]) >= 2 and task["files"]
        assert all((ROOT / name).is_file() and name in task["prompt"] for name in task["files"])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: Path(task["files"][0]).stem)
def test_the_pattern_of_the_cause_is_right(task: dict[str, Any]) -> None:
    """It is found in the corpus' own words about the case, and not in an empty phrase."""
    assert task["healthy"] == (answer_of(task).outcome == "no_fault")
    if not task["healthy"]:
        pattern = re.compile(task["cause"], re.IGNORECASE)
        assert pattern.search(f"{answer_of(task).fields}")
        assert not pattern.search("AOTInductor failed. I could not find out why.")


def test_cases_can_be_loaded(tmp_path: Path) -> None:
    """The tool writes a case for each task, with fields that the command takes and a scaffold that runs."""
    subprocess.run([sys.executable, str(ROOT / "tools" / "evals.py"), str(tmp_path)], check=True)
    cases = sorted(tmp_path.glob("*/case.yaml"))
    assert len(cases) == len(TASKS)
    for path in cases:
        case, program = yaml.safe_load(path.read_text()), f"{path.parent.name.replace('-', '_')}.py"
        assert case["name"] == path.parent.name and program in case["execution"]["prompt"]
        assert all(set(grader) <= GRADERS[grader["type"]] for grader in case["graders"])
        subprocess.run([path.with_name("scaffold.sh")], cwd=path.parent, check=True)
        assert (path.parent / program).is_file()
