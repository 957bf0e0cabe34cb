"""The programs with two defects: their answers, the runs that show the causes, how verdicts are judged."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks.corpus.answers import Answer, Defect
from benchmarks.corpus.judge import Score
from benchmarks.corpus.judge_defects import bystander_spared, causes_in_order, defect_shares, summary
from benchmarks.corpus.repairs import trials
from benchmarks.corpus.validate import SETS, main, select
from mcp_server.model import CATEGORIES, ComponentKind

HOME = SETS["two_defects"]
ANSWERS = select(HOME, None, [])
BOTH = pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: str(answer.name))


def source(answer: Answer) -> str:
    return (HOME / f"{answer.name}.py").read_text()


def test_the_set_is_large_and_balanced() -> None:
    """At least 24 failing programs, half of them for CUDA, and healthy ones of both kinds."""
    failing = [answer.needs for answer in ANSWERS if answer.outcome == "fault"]
    healthy = [answer.needs for answer in ANSWERS if answer.outcome == "no_fault"]
    assert min(failing.count("cpu"), failing.count("cuda")) >= 12
    assert min(healthy.count("cpu"), healthy.count("cuda")) >= 2
    assert {path.stem for path in HOME.glob("*.py")} == {answer.name for answer in ANSWERS}


def test_a_bystander_of_one_program_is_the_cause_of_another() -> None:
    """Nobody gets a bystander right by its category."""
    causes = {category for answer in ANSWERS for cause in answer.causes for category in cause.categories}
    assert all(bystander.categories & causes for answer in ANSWERS for bystander in answer.bystanders)


@BOTH
def test_an_answer_has_two_defects_and_uses_the_vocabulary(answer: Answer) -> None:
    """A failing program has a cause, a healthy one none; categories, kinds, patterns and lines exist."""
    defects = [*answer.causes, *answer.bystanders]
    assert len(defects) >= 2
    assert bool(answer.causes) == (answer.outcome == "fault")
    assert {category for defect in defects for category in defect.categories} <= set(CATEGORIES)
    parties = [party for defect in defects for party in defect.guilty]
    assert all(set(party["kind"]) <= set(get_args(ComponentKind)) for party in parties)
    for pattern in [answer.expected_error, *(party.get("name", "") for party in parties)]:
        re.compile(pattern)
    assert all(cause.expected_error and cause.guilty for cause in answer.causes)
    assert all(line in source(answer) for line in answer.model_lines)
    assert ("cuda" in source(answer)) == (answer.needs == "cuda")


@BOTH
def test_every_repair_applies_and_leaves_a_program(answer: Answer) -> None:
    """Each repair names text that is there once, changes the program, and leaves one that parses."""
    made = list(trials(answer, source(answer)))
    for trial in made:
        ast.parse(trial.source)
    assert len({trial.source for trial in made}) == len(made)


@BOTH
def test_a_program_does_not_give_its_answer_away(answer: Answer) -> None:
    """Neither the name nor the first words of a program name a category or say what is wrong."""
    said = f"{answer.name} {ast.get_docstring(ast.parse(source(answer)))}".lower()
    assert not any(category in said for category in (*CATEGORIES, "no_fault", "healthy", "wrong"))
    assert not any(defect.why in source(answer) for defect in (*answer.causes, *answer.bystanders))


THREADS = Defect(frozenset({"concurrency"}), ({"kind": ["call"]},), "", "", ())
WIDTH = Defect(frozenset({"input_mismatch"}), ({"kind": ["input"], "input_index": 2},), "", "", ())
INDEX = Defect(frozenset({"index_out_of_bounds"}), ({"kind": ["input"], "input_index": 0},), "", "", ())
SCALAR = Defect(frozenset({"input_mismatch"}), ({"kind": ["input"], "input_index": 1},), "", "", ())
ANSWER = Answer(
    name="made_up",
    needs="cpu",
    outcome="fault",
    category="index_out_of_bounds",
    guilty=INDEX.guilty,
    causes=(INDEX, SCALAR),
    bystanders=(THREADS, WIDTH),
)


def verdict(category: str, kind: str, index: int | None = None, **fields: Any) -> dict[str, Any]:
    party = {"kind": kind, "name": "x", "input_index": index}
    return {"outcome": "fault", "category": category, "guilty": party, **fields}


@pytest.mark.parametrize(
    ("told", "spared"),
    [
        (verdict("index_out_of_bounds", "input", 0), True),
        (verdict("concurrency", "call"), False),
        (verdict("concurrency", "environment"), False),
        (verdict("input_mismatch", "input", 1), True),
        (verdict("input_mismatch", "input", 2), False),
        ({**verdict("concurrency", "call"), "outcome": "inconclusive"}, True),
        (verdict("toolchain", "toolchain"), True),
        (
            verdict(
                "index_out_of_bounds",
                "input",
                0,
                causes=[{"category": "input_mismatch", "kind": "input", "name": "x", "input_index": 2}],
            ),
            False,
        ),
    ],
)
def test_a_bystander_is_told_from_a_cause(told: dict[str, Any], spared: bool) -> None:
    """By its category, and by its component where a cause has the same; in `causes` as in the verdict."""
    assert bystander_spared(ANSWER, told) is spared
    assert bystander_spared(replace(ANSWER, bystanders=()), told) is None


FIRST = {"category": "index_out_of_bounds", "kind": "input", "name": "x", "input_index": 0}
SECOND = {"kind": "input", "name": "y", "input_index": 1}


@pytest.mark.parametrize(
    ("causes", "right"),
    [
        ([FIRST, SECOND], True),
        ([FIRST], True),
        ([SECOND, FIRST], False),
        ([SECOND], False),
        ([FIRST, SECOND, SECOND], False),
        ([], None),
    ],
)
def test_causes_have_an_order(causes: list[dict[str, Any]], right: bool | None) -> None:
    """A verdict may stop after the first cause, but names no other first and none that is not there."""
    assert causes_in_order(ANSWER, {"outcome": "fault", "causes": causes}) is right


def test_the_summary_counts_proven_apart() -> None:
    """A proven verdict about a bystander is a proven one that is wrong."""
    right = Score(
        "a", "script", "constants", "fault", "constants", True, True, None, "proven", bystander_spared=True
    )
    wrong = replace(right, category_right=False, guilty_right=False, bystander_spared=False)
    told = summary("two_defects", [right, wrong])
    assert told.startswith("two_defects: proven right 1 of 2, category right 1 of 2")
    assert told.endswith("bystander accused 1")
    assert [(share.right, share.all) for share in defect_shares([right, wrong])] == [(1, 2)]


@pytest.mark.parametrize(("repaired", "code"), [("a, b = 3, 2", 0), ("a, b = 4, 2", 1)])
def test_validating_runs_a_program_without_its_defects(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    repaired: str,
    code: int,
) -> None:
    """A repair that does not mend is found by running the program with it."""
    (tmp_path / "small.py").write_text("a, b = 1, 2\nprint(a, b)\nassert a == 3, 'shapes'\n")
    (tmp_path / "small.yaml").write_text(
        "needs: cpu\noutcome: fault\ncategory: script_error\nguilty: []\ncause: a\nfix: b\n"
        f'expected_error: shapes\ncauses: [{{"fixed": [["a, b = 1, 2", "{repaired}"]]}}]\n'
        'bystanders: [{"category": "hang", "guilty": [], "why": "c", "fixed": [["print(a, b)", ""]]}]\n'
    )
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["validate", "--directory", str(tmp_path), "--out", str(out)])
    assert main() == code
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("BAD" if code else "ok ")
    assert "ok: bystanders fixed, ends as before" in line
    assert ("NOT SO: causes fixed, ends well" in line) == bool(code)
