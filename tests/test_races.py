"""The race against PyTorch's guide: what its table says, and what its numbers are made of."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import guide_race
from benchmarks.corpus.answers import Answer
from benchmarks.corpus.forms import Question
from benchmarks.guide_race import (
    LEFT,
    Diagnosis,
    Procedure,
    Race,
    follow,
    print_races,
    race,
    run,
    summary,
)

STEPS = {"plain": 20.0, "sanity_checks": 20.0, "printer_3": 20.0}
GUIDE = Procedure(runs=3, wall_s=60.0, named_by="sanity_checks", named_s=40.0, steps=STEPS)
SCRIPT = Diagnosis("script", 2, 1, 30.0, named=True, confidence="proven", said="input 1 is too long")
PACKAGE = replace(SCRIPT, form="package", runs=1, compiles=0, seconds=10.0)
RACE = Race("made_up", "cpu", GUIDE, (SCRIPT, PACKAGE))
ANSWER = Answer(name="made_up", needs="cpu", outcome="fault", category="constants")


def printed(races: list[Race]) -> str:
    text = StringIO()
    print_races(races, Console(file=text, width=160))
    return text.getvalue()


def test_a_ratio_is_all_of_the_guide_against_diagnose() -> None:
    """The whole guide counts in either form; what a lucky or a spared reader takes is told beside it."""
    assert [RACE.ratio(found) for found in RACE.diagnoses] == [2.0, 6.0]
    assert [RACE.lucky_ratio(found) for found in RACE.diagnoses] == [pytest.approx(4 / 3), 4.0]
    assert RACE.spared_ratio(PACKAGE) == 4.0


def test_medians_are_kept_apart_by_form_and_machine() -> None:
    """A fast package form does not lift the script form over its target, nor the CPU a CUDA machine."""
    cuda = replace(RACE, needs="cuda")
    told = "\n".join(summary([RACE, cuda]))
    assert "cpu, script: median ratio 2.0 (target 5: MISSED)" in told
    assert "cpu, package: median ratio 6.0 (target 5: reached)" in told
    assert "cuda, package: median ratio 6.0 (target 10: MISSED)" in told


def test_a_party_that_was_not_named_is_told() -> None:
    """A quick verdict that names nobody counts as such in the row and in the summary."""
    missed = replace(RACE, diagnoses=(replace(PACKAGE, named=False, confidence=""),))
    assert "✗" in printed([missed])
    assert any("named in 0 of 1 cases" in line for line in summary([missed]))


def test_the_guide_keeps_the_seconds_of_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They add up to the whole, a limit ends the guide, and the cache of the plain run alone is kept."""

    def step(_script: Path, log: Path, *_: object) -> tuple[str, float]:
        log.write_text("")
        (log.parent / "inductor" / log.stem).mkdir(parents=True)
        return "", 2.0

    monkeypatch.setattr(guide_race, "run_step", step)
    guided, cut_short = tmp_path / "guided", tmp_path / "cut_short"
    guided.mkdir()
    cut_short.mkdir()
    done = follow(ANSWER, tmp_path / "made_up.py", guided)
    assert (sum(done.steps.values()), list(done.steps), done.cut) == (done.wall_s, list(STEPS), False)
    assert [path.name for path in (guided / LEFT).iterdir()] == ["plain"]
    cut = follow(ANSWER, tmp_path / "made_up.py", cut_short, limit_s=3)
    assert (list(cut.steps), cut.cut) == (["plain", "sanity_checks"], True)


class Raced:
    """A case whose package form alone exists."""

    answer = ANSWER

    def __init__(self, home: Path) -> None:
        self.home, self.path = home, home / "made_up.py"

    def question(self, form: str) -> Question | None:
        return Question(("--package", "model.pt2"), self.home) if form == "package" else None


def test_a_race_asks_only_in_forms_that_exist_and_keeps_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form has a compile cache of its own, which starts empty; a case without the form is not raced."""
    asked: list[dict[str, str]] = []

    def ask(question: Question, budget_s: float, env: dict[str, str]) -> dict[str, Any]:
        asked.append(env)
        return {"outcome": "fault", "category": "constants", "confidence": "likely", "summary": "stale"}

    monkeypatch.setattr(guide_race, "CACHE", tmp_path)
    monkeypatch.setattr(guide_race, "program", lambda answer, *_: Raced(tmp_path / "made_up-1"))
    monkeypatch.setattr(guide_race, "follow", lambda *_: GUIDE)
    monkeypatch.setattr(guide_race, "ask", ask)
    found = race(ANSWER, ["script", "package"], 60)
    assert found is not None
    assert [(d.form, d.named, d.said) for d in found.diagnoses] == [("package", True, "stale")]
    home = tmp_path / "races" / "made_up-1"
    assert asked == [{"TORCHINDUCTOR_CACHE_DIR": str(home / "inductor-package")}]
    assert json.loads((home / "verdict-package.json").read_text())["category"] == "constants"
    assert race(ANSWER, ["script"], 60) is None


@pytest.mark.parametrize(("cold", "held"), [(False, ["kernel"]), (True, [])])
def test_the_program_begins_with_what_its_plain_run_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool, held: list[str]
) -> None:
    """The cache is a copy, which `diagnose` may change; with `--cold` it is empty."""
    seen: list[list[str]] = []

    def guide(_answer: Answer, _script: Path, directory: Path, _limit: float) -> Procedure:
        (directory / LEFT / "kernel").mkdir(parents=True)
        return GUIDE

    def ask(question: Question, budget_s: float, env: dict[str, str]) -> dict[str, Any]:
        cache = Path(env["TORCHINDUCTOR_CACHE_DIR"])
        seen.append([path.name for path in cache.iterdir()] if cache.exists() else [])
        return {"error": "no verdict"}

    case = Raced(tmp_path / "made_up-1")
    case.question = lambda form: Question((form,), case.home)  # type: ignore[method-assign]
    monkeypatch.setattr(guide_race, "CACHE", tmp_path)
    monkeypatch.setattr(guide_race, "program", lambda *_: case)
    monkeypatch.setattr(guide_race, "follow", guide)
    monkeypatch.setattr(guide_race, "ask", ask)
    found = race(ANSWER, ["script"], 60, cold=cold)
    assert seen == [held]
    assert found is not None and (found.diagnoses[0].named, found.diagnoses[0].said) == (False, "no verdict")


def test_cases_run_side_by_side_and_one_that_breaks_costs_no_other() -> None:
    """With two jobs both run at once; the broken one is told of, the other one's race is kept."""
    meet, told = threading.Barrier(2, timeout=120), StringIO()

    def one(answer: Answer) -> Race:
        meet.wait()
        if answer.name == "broken":
            raise OSError("no space left")
        return RACE

    answers = [replace(ANSWER, name="broken"), ANSWER]
    assert list(run(answers, 2, one, Console(file=told, width=160))) == [RACE]
    assert "broken: not raced: OSError('no space left')" in told.getvalue()
