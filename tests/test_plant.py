"""Planted programs, their judge, and published numbers of first verdicts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import kept
from benchmarks.plant.__main__ import keep_files, of_kept, table
from benchmarks.plant.faults import fault_rows
from benchmarks.plant.fixes import fix_right
from benchmarks.plant.judge import Answer, judge
from benchmarks.plant.models import MODELS, Input, Model
from tests.conftest import ROOT

SOURCE = ("import torch", "def forward(x, y):", "    a = x / y", "    return a")
ANSWER = Answer(
    ("nan_or_inf",), inputs=(1,), element=(2, 3), lines=(3,), source=SOURCE, constants=("w.weight",)
)
DIVISION = {"file": "/srv/model.py", "line": 3, "code": "a = x / y"}
RETURN = {"file": "/srv/model.py", "line": 4, "code": "return a"}
KERNEL: dict[str, Any] = {
    "kind": "kernel",
    "name": "cpp_fused_div_0",
    "model_locations": [DIVISION],
    "elements": ["args[1][2, 3] = 0"],
}
SAID = {"outcome": "fault", "category": "nan_or_inf", "confidence": "proven", "summary": ""}
VERDICT: dict[str, Any] = {**SAID, "guilty": KERNEL, "fix": {"text": "add eps"}}


def value_at(place: int, where: tuple[int, ...]) -> float | None:
    return 0.0 if (place, where) == (1, (2, 3)) else 5.0 if where < (6,) else None


def guilty(**changed: object) -> dict[str, Any]:
    return {**VERDICT, "guilty": {**KERNEL, **changed}}


def test_a_right_verdict_gets_every_point() -> None:
    score = judge(ANSWER, VERDICT, value_at)
    assert score.right
    assert score.component_right and score.element_right and score.line_named and score.fix_printed


@pytest.mark.parametrize(
    ("verdict", "component", "element", "line"),
    [
        (guilty(model_locations=[RETURN]), False, True, False),
        (guilty(elements=["args[1][3, 2] = 5"]), True, False, True),
        (guilty(elements=["args[0][2, 3] = 5"], model_locations=[]), False, False, False),
        (guilty(model_locations=[DIVISION, RETURN, RETURN]), False, True, False),
        (guilty(kind="input", input_index=1, model_locations=[]), True, True, False),
        (guilty(kind="input", input_index=0, model_locations=[], elements=[]), False, False, False),
        (guilty(kind="input", input_index=1, model_locations=[], elements=[]), True, False, False),
        (guilty(kind="constant", name="w_weight", model_locations=[]), False, True, False),
        (guilty(kind="call", value="args[1] exchanged", model_locations=[]), True, True, False),
        (guilty(kind="call", value="args[0] and args[1] exchanged", model_locations=[]), False, True, False),
        ({**VERDICT, "outcome": "inconclusive"}, False, False, False),
    ],
)
def test_parts_are_judged_apart(verdict: dict[str, Any], component: bool, element: bool, line: bool) -> None:
    """Each mark judges only its own field. A verdict that accuses nobody gets no mark."""
    score = judge(ANSWER, verdict, value_at)
    assert (score.component_right, score.element_named, score.line_named) == (component, element, line)


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (guilty(model_locations=[{**DIVISION, "line": 2}]), "line 2 is not a = x / y"),
        (guilty(model_locations=[{**DIVISION, "line": 9}]), "line 9 does not exist"),
        (guilty(elements=["args[1][2, 3] = 1"]), "args[1][2, 3] = 1: it is 0.0"),
        (guilty(elements=["args[1][9, 9] = 0"]), "args[1][9, 9] = 0: there is no such element"),
        (guilty(kind="constant", name="v"), "no constant is called v"),
        ({**VERDICT, "call": {"number": 2, "of": 2}}, "call 2 is named, and call 1 fails"),
        ({**VERDICT, "causes": [{"model_locations": [{**DIVISION, "line": 4}]}]}, "line 4 is not a = x / y"),
    ],
)
def test_one_false_field_makes_a_verdict_wrong(verdict: dict[str, Any], says: str) -> None:
    score = judge(ANSWER, verdict, value_at)
    assert score.false_fields == (says,)
    assert not score.right


def test_only_an_accusation_is_wrong_of_a_healthy_program() -> None:
    assert not judge(Answer(), VERDICT).right
    assert judge(Answer(), {"outcome": "inconclusive", "summary": ""}).right


def test_the_table_counts_healthy_programs_apart() -> None:
    """An accused healthy program is not a wrong category, and an unplanted one does not count."""
    counted = {"category_right": True, "component_right": True, "element_right": None, "fix_printed": True}
    known: dict[str, object] = {"fault": "index_too_high", "outcome": "fault", "confidence": "proven"}
    fault = {**known, **counted, "false_fields": ()}
    wrong = {**fault, "false_fields": ("line 2 is not it",)}
    accused = {**fault, "fault": "plain"}
    rows = table([fault, wrong, accused, {"fault": "plain"}])
    assert "| right category | 2 of 2 |" in rows
    assert "| right when it says `proven` | 1 of 2 |" in rows
    assert "| healthy programs accused | 1 of 1 |" in rows


def test_the_published_tables_are_those_of_the_results() -> None:
    """The page of the benchmarks has the tables of the kept results."""
    page = (ROOT / "benchmarks" / "README.md").read_text()
    for run in kept("planted").values():
        assert "\n".join(table(of_kept(run))) in page


def test_judged_programs_of_several_runs_are_kept_together(tmp_path: Path) -> None:
    """An accused program is kept with its seed, others as a number. Unplanted ones are left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.RESULTS", tmp_path / "results.json")
        (tmp_path / "results.json").write_text("{}")
        files = [tmp_path / f"{seed}.json" for seed in (7, 8, 9)]
        healthy = {"number": 1, "fault": "plain", "model": "half", "form": "script", "outcome": "no_fault"}
        healthy |= {"category": "", "confidence": "likely", "category_right": True, "false_fields": []}
        accused = {**healthy, "outcome": "fault", "category_right": False}
        for seed, file, asked in zip((7, 8, 9), files, (healthy, healthy, accused), strict=True):
            programs = [asked, {"number": 2, "fault": "plain", "refused": ["nothing failed"]}]
            file.write_text(json.dumps({"seed": seed, "torch": "2.13", "programs": programs}))
        found = keep_files(files, "cpu")
        rows = kept("planted")["cpu"]
    assert rows["with_something_wrong"] == ["9/1 plain half script fault - likely n------n"]
    assert rows["others"] == {"plain no_fault - likely y------n": 2}
    assert table(found)[-1] == "| healthy programs accused | 1 of 3 |"


MODEL = Model(
    "ratio",
    """
class Model(nn.Module):
    def forward(self, x, y):
        ratio = x / y
        return ratio.sum(1)
""",
    (Input("x", (2, 3)), Input("y", (2, 3), "uniform", 1.0, 2.0)),
    {},
)
RATIO = "ratio = x / y"
PROGRAM = """import torch
from pathlib import Path

x, y = torch.load(Path(__file__).with_name("inputs.pt"))
assert torch.isfinite(x / y).all()
"""


@pytest.mark.parametrize(
    ("before", "after", "right"),
    [
        (RATIO, "ratio = x / torch.where(y == 0, 1, y)", True),
        (RATIO, "ratio = x * 0", False),  # finite, but another model
        (RATIO, "ratio = x / (y + 0)", False),
        (RATIO, "y = torch.where(y == 0, 1, y)\nratio = x / y", True),
        (None, "args[1] = args[1].clamp(min=1)", True),
        (None, "args[1] = args[1].clone()", False),
        (None, "if not (args[1] > 0).all(): raise ValueError('above 0')", True),
        (
            None,
            "if not (args[1] > 1.5).all(): raise ValueError('above 1.5')",
            False,
        ),  # rejects good inputs, too
        (None, "keep the divisor away from 0", None),
        ("state['y']", "state['y'].contiguous()", None),
    ],
)
def test_a_printed_change_is_run(tmp_path: Path, before: str | None, after: str, right: bool | None) -> None:
    """A fix of model lines or `args` is right if the failure disappears and usual calls stay right."""
    x, y = torch.ones(2, 3), torch.full((2, 3), 1.25)
    torch.save((x, y.clone()), tmp_path / "before.pt")
    y[1, 2] = 0
    torch.save((x, y), tmp_path / "inputs.pt")
    (tmp_path / "program.py").write_text(PROGRAM)
    fix = {"text": "", "before": before, "after": after}
    assert fix_right(tmp_path, MODEL.text.splitlines(), MODEL, [x, y], fix) is right


def test_every_mistake_is_an_edit_of_its_source() -> None:
    """The old text and the answer's lines are in the model, and each edit belongs to a fault."""
    faults = fault_rows()
    for edit, source in ((edit, model.source) for model in MODELS.values() for edit in model.edits):
        edited = source.replace(edit.old, edit.new)
        assert edit.old in source and all(line in edited for line in edit.lines)
        assert faults[edit.fault].edits == edit.fault
    needed = {row.edits for row in faults.values() if row.edits}
    assert needed == {edit.fault for model in MODELS.values() for edit in model.edits}


def test_the_readme_quotes_the_tables_of_first_sight() -> None:
    """The README's shares of categories and of `proven` are the sums of the page's rows."""
    page = (ROOT / "benchmarks" / "first_sight.md").read_text()
    shares = {
        "scripts": re.findall(r"^\| \d \| script \| (\d+) of (\d+) \| [^|]+\| [^|]+\| [^|]+\|", page, re.M),
        "proven": re.findall(r"^\| [a-z_]+ \| (\d+) of (\d+) \|", page, re.M),
    }
    right = {name: sum(int(part) for part, _ in rows) for name, rows in shares.items()}
    whole = {name: sum(int(whole) for _, whole in rows) for name, rows in shares.items()}
    scripts, proven = (f"{right[name]} of {whole[name]}" for name in shares)
    measured = (ROOT / "benchmarks" / "README.md").read_text()
    assert f"{scripts} scripts; right cause in {proven} `proven`" in measured
    readme = (ROOT / "README.md").read_text()
    assert f"[{scripts}]" in readme and f"[{proven}]" in readme
