"""Programs with known answers: answers, scorer, verdicts on recorded logs, and on request on programs."""

import ast
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

from benchmarks.corpus.answers import PROGRAMS, Answer, Defect, trials
from benchmarks.corpus.forms import CACHE
from benchmarks.corpus.judge import (
    Score,
    bystander_spared,
    calibration,
    causes_in_order,
    defect_shares,
    fits,
    judge,
    summary,
)
from benchmarks.corpus.recorded import logs, neutral, shortened
from benchmarks.corpus.score import all_shares, arguments, run
from benchmarks.corpus.validate import ROOT, as_expected, main, select
from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.model import CATEGORIES, FAILURES, ComponentKind
from mcp_server.runtime.context import Context

ANSWERS = select(None)
SEVERAL = [answer for answer in ANSWERS if answer.bystanders or answer.causes]
THIRD = os.environ.get("CORPUS_THIRD")

INPUT = {"kind": ["input"], "input_index": 1, "dim": 0}
ANSWER = Answer(
    name="made_up",
    needs="cpu",
    outcome="fault",
    category="input_mismatch",
    also_accepted=("shape_out_of_range",),
    guilty=(INPUT, {"kind": ["call"], "name": "keyword"}),
    model_lines=("h = self.inp(x)",),
    log_accepts=("inconclusive",),
)
HEALTHY = replace(ANSWER, outcome="no_fault", category=None, also_accepted=(), guilty=(), model_lines=())


def verdict(**fields: Any) -> dict[str, Any]:
    return {"outcome": "fault", "category": "input_mismatch", "confidence": "proven", **fields}


def test_the_corpus_is_small_and_balanced() -> None:
    """There are at most 60 programs, for CPU and CUDA, with healthy ones and all categories."""
    needs = [answer.needs for answer in ANSWERS]
    assert len(ANSWERS) <= 60
    assert min(needs.count("cpu"), needs.count("cuda")) >= 15
    assert sum(answer.outcome == "no_fault" for answer in ANSWERS) >= 12
    assert {answer.category for answer in ANSWERS if answer.category} == set(FAILURES)


@pytest.mark.parametrize("category", FAILURES)
def test_a_category_has_two_programs_and_a_look_alike(category: str) -> None:
    """At least two programs fail in each way, and one that works looks as if it would fail."""
    failing = [answer.name for answer in ANSWERS if answer.category == category]
    alike = [answer.name for answer in ANSWERS if category in answer.looks_like]
    assert (len(failing) >= 2, len(alike) >= 1) == (True, True), f"{failing}, look-alikes {alike}"


def test_each_program_teaches_something_else() -> None:
    """Each answer says in one short line what its program is for, and no two lines are equal."""
    reasons = [answer.fields.get("teaches") or answer.fields.get("issue_class") or "" for answer in ANSWERS]
    assert all(10 <= len(reason) <= 110 for reason in reasons)
    assert len(set(reasons)) == len(reasons)


def test_the_readme_counts_the_programs() -> None:
    """The README's table has the programs of each category by device, and the look-alikes by name."""
    table = (ROOT / "benchmarks" / "corpus" / "README.md").read_text()
    counted = Counter((answer.category, answer.needs) for answer in ANSWERS)
    alike = {each: ", ".join(a.name for a in ANSWERS if each in a.looks_like) for each in FAILURES}
    rows = [f"| `{c}` | {counted[c, 'cpu']} | {counted[c, 'cuda']} | {alike[c]} |" for c in FAILURES]
    rows.append(f"| none | {counted[None, 'cpu']} | {counted[None, 'cuda']} | |")
    assert [row for row in rows if f"\n{row}\n" not in table] == []


def test_every_program_has_an_answer_and_every_answer_a_program() -> None:
    """A program NAME.py has the key NAME in answers.yaml, and every log has a program."""
    assert {path.stem for path in PROGRAMS.glob("*.py")} == {answer.name for answer in ANSWERS}
    assert set(logs()) <= {answer.name for answer in ANSWERS}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: str(answer.name))
def test_an_answer_uses_the_vocabulary_and_fits_its_program(answer: Answer) -> None:
    """Categories and kinds exist, patterns compile, and the model lines occur in the program."""
    source = (PROGRAMS / f"{answer.name}.py").read_text()
    ast.parse(source)
    categories = {*answer.categories, *answer.log_accepts} - {"inconclusive", None}
    assert categories <= set(CATEGORIES)
    assert all(set(party["kind"]) <= set(get_args(ComponentKind)) for party in answer.guilty)
    for pattern in (answer.expected_error, *(party.get("name", "") for party in answer.guilty)):
        re.compile(pattern)
    assert all(line in source for line in answer.model_lines)
    assert ("cuda" in source) == (answer.needs == "cuda")


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: str(answer.name))
def test_a_program_does_not_give_its_answer_away(answer: Answer) -> None:
    """Neither the name nor the docstring of a program names its category or the cause."""
    source = (PROGRAMS / f"{answer.name}.py").read_text()
    told = f"{answer.name} {ast.get_docstring(ast.parse(source))}".lower()
    assert not any(category in told for category in (*FAILURES, "no_fault", "healthy", "wrong"))
    assert answer.fields["cause"] not in source


def test_a_verdict_is_right_with_the_category_party_and_line_of_the_answer(tmp_path: Path) -> None:
    """A location is right by the text at its line or by the code that it quotes."""
    script = tmp_path / "made_up.py"
    script.write_text("import torch\nh = self.inp(x)\n")
    place = {"file": "/else/where/made_up.py", "line": 2}
    party = {"kind": "input", "name": "x", "input_index": 1, "dim": 0, "model_locations": [place]}
    score = judge(ANSWER, "script", verdict(guilty=party), script)
    assert (score.category_right, score.guilty_right, score.line_right) == (True, True, True)


@pytest.mark.parametrize(
    "party",
    [
        {"kind": "input", "name": "x", "input_index": 0, "dim": 0},
        {"kind": "input", "name": "x", "input_index": 1, "dim": 1},
        {"kind": "kernel", "name": "x", "input_index": 1, "dim": 0},
        {"kind": "call", "name": "the arguments"},
        {"kind": "call", "name": CATEGORIES["input_mismatch"], "value": "keyword"},
        {},
    ],
)
def test_another_party_is_wrong(party: dict[str, Any]) -> None:
    """Kind, index, dimension and name must all fit."""
    assert not any(fits(alternative, party) for alternative in ANSWER.guilty)


@pytest.mark.parametrize(
    ("answer", "form", "fields", "right"),
    [
        (ANSWER, "script", {"category": "shape_out_of_range"}, True),
        (ANSWER, "script", {"category": "constants"}, False),
        (ANSWER, "script", {"outcome": "inconclusive"}, False),
        (ANSWER, "log", {"outcome": "inconclusive", "category": None}, True),
        (replace(ANSWER, log_accepts=()), "log", {"outcome": "inconclusive"}, True),
        (replace(ANSWER, log_accepts=()), "log", {"outcome": "inconclusive", "category": "hang"}, False),
        (HEALTHY, "script", {}, False),
        (HEALTHY, "script", {"outcome": "no_fault", "category": None}, True),
        (HEALTHY, "package", {"outcome": "inconclusive"}, False),
    ],
)
def test_a_category_is_judged_by_form(answer: Answer, form: str, fields: dict[str, Any], right: bool) -> None:
    """For a log, a suspicion is enough. Any other form must claim the right category."""
    assert judge(answer, form, verdict(**fields), None).category_right is right


def test_calibration_counts_what_was_claimed() -> None:
    """A proven verdict with the wrong party counts as wrong. `possible` is not counted."""
    right = Score("a", "script", "constants", "fault", "constants", True, True, None, "proven")
    scores = [right, replace(right, guilty_right=False), replace(right, confidence="possible")]
    proven, likely = calibration(scores)
    assert (proven.right, proven.all, proven.reached) == (1, 2, False)
    assert (likely.all, likely.reached) == (0, True)


def test_the_end_of_a_run_is_compared_with_the_answer() -> None:
    """A healthy case must end with status 0. Only a hang may reach its time limit."""
    fault = replace(ANSWER, expected_error="rc=-11")
    assert as_expected(fault, "Fatal Python error", -11, timed_out=False)
    assert not as_expected(fault, "Fatal Python error", -11, timed_out=True)
    assert as_expected(replace(fault, category="hang", expected_error="^one"), "one\n", -9, timed_out=True)
    assert not as_expected(replace(HEALTHY, expected_error="^done"), "done\n", 1, timed_out=False)


LOGS = logs()
RECORDED = [answer for answer in ANSWERS if answer.name in LOGS]


async def log_verdict(answer: Answer, directory: Path) -> dict[str, Any]:
    log = directory / "plain.log"
    directory.mkdir()
    log.write_text(LOGS[answer.name])
    found = await diagnose(Context(directory, Path(sys.executable)), None, log=log)
    return found.model_dump(mode="json")


async def test_verdicts_on_recorded_logs_reach_the_targets(tmp_path: Path) -> None:
    """From a log alone, no claim is wrong, no healthy program is accused, and first suspicions are right."""
    scores = [judge(a, "log", await log_verdict(a, tmp_path / a.name), None) for a in RECORDED]
    assert len(scores) >= 25
    claimed = [score for score in scores if score.claimed]
    assert [score.case for score in claimed if not score.category_right] == []
    failing = [score for score in scores if score.expected != "no_fault"]
    assert len(claimed) >= len(failing) / 4
    assert [str(share) for share in all_shares(scores) if not share.reached] == []


def test_a_recorded_log_names_no_machine() -> None:
    """Paths of the checkout, interpreter and caches are replaced, and inner library frames removed."""
    text = f'  File "{ROOT}/a.py"\n{CACHE}/programs/a-12/script/a.py {Path.home()}/x'
    assert neutral(text) == '  File "/srv/app/a.py"\n/srv/app/a.py /home/app/x'
    assert [name for name, log in LOGS.items() if str(ROOT) in log or shortened(log) != log] == []


@pytest.mark.slow
@pytest.mark.skipif(THIRD is None, reason="set CORPUS_THIRD=N to score every third case, from the Nth on")
def test_a_third_of_the_cases_reaches_the_targets() -> None:
    """Every third CPU case reaches the targets as script, package and log."""
    console = Console(stderr=True)
    scores = run(arguments(["--needs", "cpu", "--third", str(THIRD)]), console)
    missed = [str(share) for share in all_shares(scores) if not share.reached]
    assert not missed


@pytest.mark.parametrize("answer", SEVERAL, ids=lambda answer: str(answer.name))
def test_an_answer_has_two_defects_and_repairs_that_apply(answer: Answer) -> None:
    """Only a failing program has a cause, and each repair leaves a program that parses."""
    defects = [*answer.causes, *answer.bystanders]
    assert len(defects) >= 2 and bool(answer.causes) == (answer.outcome == "fault")
    assert {category for defect in defects for category in defect.categories} <= set(CATEGORIES)
    parties = [party for defect in defects for party in defect.guilty]
    assert all(set(party["kind"]) <= set(get_args(ComponentKind)) for party in parties)
    for pattern in (party.get("name", "") for party in parties):
        re.compile(pattern)
    assert all(cause.expected_error and cause.guilty for cause in answer.causes)
    made = list(trials(answer, (PROGRAMS / f"{answer.name}.py").read_text()))
    for trial in made:
        ast.parse(trial.source)
    assert len({trial.source for trial in made}) == len(made)


THREADS = Defect(frozenset({"concurrency"}), ({"kind": ["call"]},), "", "", ())
WIDTH = Defect(frozenset({"input_mismatch"}), ({"kind": ["input"], "input_index": 2},), "", "", ())
INDEX = Defect(frozenset({"index_out_of_bounds"}), ({"kind": ["input"], "input_index": 0},), "", "", ())
SCALAR = Defect(frozenset({"input_mismatch"}), ({"kind": ["input"], "input_index": 1},), "", "", ())
TWO = Answer(
    name="made_up",
    needs="cpu",
    outcome="fault",
    category="index_out_of_bounds",
    guilty=INDEX.guilty,
    causes=(INDEX, SCALAR),
    bystanders=(THREADS, WIDTH),
)


def accusing(category: str, kind: str, index: int | None = None, **fields: Any) -> dict[str, Any]:
    party = {"kind": kind, "name": "x", "input_index": index}
    return {"outcome": "fault", "category": category, "guilty": party, **fields}


@pytest.mark.parametrize(
    ("told", "spared"),
    [
        (accusing("index_out_of_bounds", "input", 0), True),
        (accusing("concurrency", "call"), False),
        (accusing("concurrency", "environment"), False),
        (accusing("input_mismatch", "input", 1), True),
        (accusing("input_mismatch", "input", 2), False),
        ({**accusing("concurrency", "call"), "outcome": "inconclusive"}, True),
        (accusing("toolchain", "toolchain"), True),
        (
            accusing(
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
    """A bystander is recognized by its category, or by its component if a cause has the same category."""
    assert bystander_spared(TWO, told) is spared
    assert bystander_spared(replace(TWO, bystanders=()), told) is None


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
    """A verdict may stop after the first cause, but must start with it and name no other."""
    assert causes_in_order(TWO, {"outcome": "fault", "causes": causes}) is right


def test_the_summary_counts_proven_apart() -> None:
    """A proven verdict about a bystander counts as proven and wrong."""
    fields = ("a", "script", "constants", "fault", "constants", True, True, None, "proven")
    right = Score(*fields, bystander_spared=True)
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
    """A repair that does not work is found by running the repaired program."""
    (tmp_path / "small.py").write_text("a, b = 1, 2\nprint(a, b)\nassert a == 3, 'shapes'\n")
    (tmp_path / "answers.yaml").write_text(
        "small: {needs: cpu, outcome: fault, category: script_error, cause: a, expected_error: shapes,\n"
        f'  causes: [{{"fixed": [["a, b = 1, 2", "{repaired}"]]}}],\n'
        '  bystanders: [{"category": "hang", "why": "c", "fixed": [["print(a, b)", ""]]}]}\n'
    )
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["validate", "--directory", str(tmp_path), "--out", str(out)])
    assert main() == code
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("BAD" if code else "ok ")
    assert "ok: bystanders fixed, ends as before" in line
    assert ("NOT SO: causes fixed, passes" in line) == bool(code)
