"""Batches that are asked about once: their answers, and that nothing that was said is ever said again."""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.corpus.answers import Answer
from benchmarks.corpus.validate import select
from benchmarks.first_sight import ask
from mcp_server.model import CATEGORIES, ComponentKind
from tools.packed import unpacked

BATCHES = sorted(path for path in ask.HOME.glob("batch*") if path.is_dir())
PROGRAMS = [(batch, answer) for batch in map(unpacked, BATCHES) for answer in select(batch, None, [])]
ASKED = argparse.Namespace(needs=None, programs=[], forms=["script"], jobs=1, budget_s=60)


@pytest.mark.parametrize(("batch", "answer"), PROGRAMS, ids=lambda value: getattr(value, "name", ""))
def test_an_answer_uses_the_vocabulary_and_fits_its_program(batch: Path, answer: Answer) -> None:
    """Categories and kinds exist, patterns compile, model lines are lines, and the class is said."""
    source = (batch / f"{answer.name}.py").read_text()
    ast.parse(source)
    assert answer.categories <= {*CATEGORIES, None}
    assert all(set(party["kind"]) <= set(get_args(ComponentKind)) for party in answer.guilty)
    for pattern in (answer.expected_error, *(party.get("name", "") for party in answer.guilty)):
        re.compile(pattern)
    assert all(line in source for line in answer.model_lines)
    assert answer.fields["issue_class"]


def test_the_page_has_the_figures_of_all_first_verdicts() -> None:
    """Its table of reliability, and what README.md quotes from there, are counted from what was kept."""
    found = ask.at_first_sight()
    assert ask.reliability(found) in (ask.HOME / "README.md").read_text()
    scripts = [score for score in found if score.form == "script"]
    proven = [score.right for score in found if score.claimed and score.confidence == "proven"]
    right = sum(bool(score.category_right) for score in scripts)
    row = f"{right} of {len(scripts)} scripts; of `proven` {sum(proven)} of {len(proven)}"
    assert row in (ask.HOME.parents[1] / "README.md").read_text(), row


@pytest.mark.parametrize("what", ["origin", "mechanism"])
@pytest.mark.parametrize("name", ["batch5", "batch6"])
def test_the_page_has_what_a_reader_told(name: str, what: str) -> None:
    """One line for each first verdict on a program with a fault, and the counts on the page."""
    batch = ask.HOME / name
    told = json.loads((batch / "verdicts" / "origins.json").read_text())
    first = ask.scores(batch, batch / "verdicts" / f"{ask.FIRST[name]}.jsonl")
    faults = {(s.case, s.form) for s in first if s.judged and s.expected != "no_fault"}
    assert {(each["case"], each["form"]) for each in told} == faults
    counts = [[each[what] for each in told if each["form"] == form] for form in ("script", "package")]
    row = " | ".join(f"{sum(right)} of {len(right)}" for right in counts)
    assert f"| {what} right, told by a reader | {row} |" in (ask.HOME / "README.md").read_text()


def repository(home: Path) -> Path:
    """A repository with a product and a batch of one program."""
    (home / "mcp_server").mkdir()
    (home / "mcp_server" / "model.py").write_text("x = 1\n")
    batch = home / "batch1"
    batch.mkdir()
    (batch / "small.py").write_text("print('small')\n")
    (batch / "small.yaml").write_text(
        "needs: cpu\noutcome: fault\ncategory: constants\nguilty: []\nexpected_error: small\n"
        'forms: ["script"]\n'
    )
    git = ["git", "-C", str(home), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    return batch


def test_what_was_said_is_never_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is there stays as it is, and the table judges it by the answer."""
    batch = repository(tmp_path)
    monkeypatch.setattr(ask, "ROOT", tmp_path)
    kept = batch / "verdicts" / f"{ask.frozen_commit()}.jsonl"
    kept.parent.mkdir()
    said = {"outcome": "fault", "category": "constants", "confidence": "proven", "summary": "weights"}
    kept.write_text(json.dumps({"case": "small", "form": "script", "verdict": said}) + "\n")
    before = kept.read_text()
    assert ask.record(batch, ASKED) == kept
    assert kept.read_text() == before
    assert [(score.case, score.right, score.confidence) for score in ask.scores(batch, kept)] == [
        ("small", True, "proven")
    ]


def test_a_product_that_is_not_committed_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit has the verdicts of changed text; a change elsewhere does not count."""
    batch = repository(tmp_path)
    monkeypatch.setattr(ask, "ROOT", tmp_path)
    (batch / "notes.md").write_text("later\n")
    assert re.fullmatch("[0-9a-f]{12}", ask.frozen_commit())
    (tmp_path / "mcp_server" / "model.py").write_text("x = 2\n")
    with pytest.raises(SystemExit, match="not as committed"):
        ask.record(batch, ASKED)
    assert not (batch / "verdicts").exists()
