"""The corpus: its answers, the scorer, verdicts on recorded logs; where asked for, a third of the cases."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.corpus.answers import Answer, parse, read_answer
from benchmarks.corpus.forms import CACHE
from benchmarks.corpus.judge import Score, calibration, fits, judge, shares
from benchmarks.corpus.recorded import LOGS, neutral
from benchmarks.corpus.score import all_shares, arguments, run
from benchmarks.corpus.validate import CASES, ROOT, as_expected, select
from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.model import CATEGORIES, ComponentKind
from mcp_server.tools.context import Context

ANSWERS = select(CASES, None, [])
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


def test_the_corpus_is_large_and_balanced() -> None:
    """40 to 110 cases, both kinds of machine, at least 20 healthy ones, and every category."""
    needs = [answer.needs for answer in ANSWERS]
    assert 40 <= len(ANSWERS) <= 110
    assert min(needs.count("cpu"), needs.count("cuda")) >= 20
    assert sum(answer.outcome == "no_fault" for answer in ANSWERS) >= 20
    assert {answer.category for answer in ANSWERS if answer.category} == set(CATEGORIES)


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_category_has_three_programs_and_a_look_alike(category: str) -> None:
    """At least three programs fail in each way, and one that runs well looks as if it would."""
    failing = [answer.name for answer in ANSWERS if answer.category == category]
    alike = [answer.name for answer in ANSWERS if category in answer.looks_like]
    assert (len(failing) >= 3, len(alike) >= 1) == (True, True), f"{failing}, look-alikes {alike}"


def test_each_program_teaches_something_else() -> None:
    """Each answer says in one short line what its program is there for, and no two say the same."""
    reasons = [answer.fields.get("teaches") or answer.fields.get("issue_class") or "" for answer in ANSWERS]
    assert all(10 <= len(reason) <= 110 for reason in reasons)
    assert len(set(reasons)) == len(reasons)


def test_the_readme_counts_the_programs() -> None:
    """Its table has the programs of each category by device, and its look-alikes by name."""
    table = (ROOT / "benchmarks" / "corpus" / "README.md").read_text()
    counted = Counter((answer.category, answer.needs) for answer in ANSWERS)
    alike = {
        category: ", ".join(a.name for a in ANSWERS if category in a.looks_like) for category in CATEGORIES
    }
    rows = [f"| `{c}` | {counted[c, 'cpu']} | {counted[c, 'cuda']} | {alike[c]} |" for c in CATEGORIES]
    rows.append(f"| none | {counted[None, 'cpu']} | {counted[None, 'cuda']} | |")
    assert [row for row in rows if f"\n{row}\n" not in table] == []


def test_every_recorded_log_has_a_program() -> None:
    """The log of a program that was removed goes with it."""
    assert {path.stem for path in LOGS.glob("*.log")} <= {answer.name for answer in ANSWERS}


def test_every_program_has_an_answer_and_every_answer_a_program() -> None:
    """Cases come in pairs NAME.py and NAME.yaml."""
    assert {path.stem for path in CASES.glob("*.py")} == {answer.name for answer in ANSWERS}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: str(answer.name))
def test_an_answer_uses_the_vocabulary_and_fits_its_program(answer: Answer) -> None:
    """Categories and kinds exist, patterns compile, and the model lines are lines of the program."""
    source = (CASES / f"{answer.name}.py").read_text()
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
    """Neither the name nor the first words of a program name its category or say what is wrong."""
    source = (CASES / f"{answer.name}.py").read_text()
    told = f"{answer.name} {ast.get_docstring(ast.parse(source))}".lower()
    assert not any(category in told for category in (*CATEGORIES, "no_fault", "healthy", "wrong"))
    assert answer.fields["cause"] not in source


def test_a_verdict_is_right_with_the_category_party_and_line_of_the_answer(tmp_path: Path) -> None:
    """A location counts by the text at its line as well as by the code that it tells."""
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
    """Kind, index, dimension and name all count."""
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
def test_the_category_is_judged_by_form(
    answer: Answer, form: str, fields: dict[str, Any], right: bool
) -> None:
    """Of a log alone, a suspicion is enough; any other form must claim what is right."""
    assert judge(answer, form, verdict(**fields), None).category_right is right


def test_calibration_counts_what_was_claimed() -> None:
    """A proven verdict with the wrong party is a wrong one; a claim without confidence is not counted."""
    right = Score("a", "script", "constants", "fault", "constants", True, True, None, "proven")
    scores = [right, replace(right, guilty_right=False), replace(right, confidence="possible")]
    proven, likely = calibration(scores)
    assert (proven.right, proven.all, proven.reached) == (1, 2, False)
    assert (likely.all, likely.reached) == (0, True)


def test_a_fault_claimed_on_a_healthy_case_misses_its_target() -> None:
    """`inconclusive` on a healthy case is no claim, though not the right category either."""
    healthy = Score("a", "script", "no_fault", "inconclusive", "", False)
    claimed = replace(healthy, outcome="fault", category="hang")
    assert shares([healthy], "script")[-1].reached
    assert not shares([healthy, claimed], "script")[-1].reached


def test_the_end_of_a_run_is_compared_with_the_answer() -> None:
    """A healthy case must end with status 0; only a hang may run into its time limit."""
    fault = replace(ANSWER, expected_error="rc=-11")
    assert as_expected(fault, "Fatal Python error", -11, timed_out=False)
    assert not as_expected(fault, "Fatal Python error", -11, timed_out=True)
    assert as_expected(replace(fault, category="hang", expected_error="^one"), "one\n", -9, timed_out=True)
    assert not as_expected(replace(HEALTHY, expected_error="^done"), "done\n", 1, timed_out=False)


def test_answers_in_the_wrapped_block_style_are_read(tmp_path: Path) -> None:
    """Quoted text over two lines, a list of items, doubled quotes, and `detail: none` for a healthy case."""
    path = tmp_path / "old.yaml"
    path.write_text(
        "needs: cpu\ncategory: constants\nalso_accepted:\n- wrong_output\ndetail: none\n"
        "guilty: 'input 1 (''hour'') is\n  too large'\nexpected_error: ^done\ntimeout_s: 90\n"
    )
    answer = read_answer(path)
    assert (answer.outcome, answer.category, answer.timeout_s) == ("no_fault", None, 90)
    assert answer.also_accepted == ("wrong_output",)
    assert answer.fields["guilty"] == "input 1 ('hour') is too large"


SCALARS = st.none() | st.integers(0, 10**9) | st.lists(st.text(), max_size=3)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), SCALARS | st.text(min_size=1)))
def test_json_values_come_back_from_an_answer(fields: dict[str, Any]) -> None:
    """What is written as JSON on one line is read as it was."""
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())
    assert parse(text) == fields


RECORDED = [answer for answer in ANSWERS if (LOGS / f"{answer.name}.log").exists()]


async def log_verdict(answer: Answer, directory: Path) -> dict[str, Any]:
    context = Context(directory, Path(sys.executable))
    found = await diagnose(context, None, log=LOGS / f"{answer.name}.log")
    return found.model_dump(mode="json")


@pytest.mark.anyio
async def test_verdicts_on_recorded_logs_reach_the_targets(tmp_path: Path) -> None:
    """From a log alone no claim is wrong, no healthy program is accused, the first suspicions are right."""
    scores = [judge(a, "log", await log_verdict(a, tmp_path / a.name), None) for a in RECORDED]
    assert len(scores) >= len([a for a in ANSWERS if a.needs == "cpu"]) / 2
    claimed = [score for score in scores if score.claimed]
    assert [score.case for score in claimed if not score.category_right] == []
    failing = [score for score in scores if score.expected != "no_fault"]
    assert len(claimed) >= len(failing) / 4
    assert [str(share) for share in all_shares(scores) if not share.reached] == []


def test_a_recorded_log_names_no_machine() -> None:
    """Paths of the checkout, of the interpreter and of caches are replaced by neutral ones."""
    text = f'  File "{CASES}/a.py"\n{CACHE}/programs/a-12/script/a.py {Path.home()}/x'
    assert neutral(text) == '  File "/srv/app/a.py"\n/srv/app/a.py /home/app/x'
    assert [a.name for a in RECORDED if str(ROOT) in (LOGS / f"{a.name}.log").read_text()] == []


@pytest.mark.slow
@pytest.mark.skipif(THIRD is None, reason="set CORPUS_THIRD=N to score every third case, from the Nth on")
def test_a_third_of_the_cases_reaches_the_targets() -> None:
    """Script, package and log of every third CPU case; no wrong `proven` and no false alarm among them."""
    console = Console(stderr=True)
    scores = run(arguments(["--needs", "cpu", "--third", str(THIRD)]), console)
    missed = [str(share) for share in all_shares(scores) if not share.reached]
    assert not missed
