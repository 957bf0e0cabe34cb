"""Sweeps: the file of cases, and verdicts that are kept."""

from __future__ import annotations

import textwrap
from pathlib import Path

import anyio
import pytest

from mcp_server.cli.app import exit_of
from mcp_server.cli.main import Exit
from mcp_server.cli.main import run as main_run
from mcp_server.errors import ProblemError
from mcp_server.sweep import (
    Results,
    Sweep,
    SweepCase,
    as_markdown,
    local_gpus,
    read_plan,
    sweep,
)


def plan(directory: Path, text: str) -> tuple[SweepCase, ...]:
    """The cases of a file with this text."""
    path = directory / "cases.yaml"
    path.write_text(textwrap.dedent(text))
    return read_plan(path)


def swept(directory: Path, text: str) -> Sweep:
    return anyio.run(lambda: sweep(plan(directory, text), Results(directory / "out"), jobs=2))


LOGS = """
    cases:
      - {name: index, log: index.log}
      - {name: gone, package: missing.pt2}
"""


def test_verdicts_are_taken_up_again(tmp_path: Path) -> None:
    """A second sweep has the verdict from the first, and asks again about what was refused."""
    (tmp_path / "index.log").write_text("RuntimeError: index out of bounds: 0 <= tmp2 < 32L\n")
    first, second = swept(tmp_path, LOGS), swept(tmp_path, LOGS)
    assert [case.ended for case in first.cases] == ["verdict", "refused"]
    assert (first.reused, second.reused) == (0, 1)
    assert second.cases[0] == first.cases[0]
    assert "does not exist" in second.cases[1].why
    assert exit_of(second) == Exit.PROBLEM and "gone: refused: " in as_markdown(second)


def test_gpus_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are visible, else the device files in the order of their numbers."""
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert local_gpus(tmp_path) == ["2", "10"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    assert local_gpus(tmp_path) == ["3", "GPU-5"]


def test_defaults_and_relative_paths(tmp_path: Path) -> None:
    """Defaults fill every case, and paths start at the file's directory."""
    cases = "[{package: a.pt2, gpus: 0, inputs: [{shape: [2], dtype: float32}]}]"
    (case,) = plan(tmp_path, f"defaults: {{budget_s: 9}}\ncases: {cases}")
    assert (case.name, case.gpus, case.arguments["budget_s"]) == ("a", 0, 9)
    assert case.arguments["package"] == str(tmp_path / "a.pt2")
    assert case.arguments["inputs"] == [{"shape": [2], "dtype": "float32"}]


def test_a_pattern_makes_a_case_of_each_file(tmp_path: Path) -> None:
    """Named after the files, below the given name if there is one."""
    for name in ("b", "a"):
        (tmp_path / f"{name}.pt").touch()
    cases = plan(tmp_path, "cases: [{name: m, package: m.pt2, inputs: '*.pt'}]")
    assert [case.name for case in cases] == ["m-a", "m-b"]
    assert [Path(case.arguments["inputs"]).name for case in cases] == ["a.pt", "b.pt"]


@pytest.mark.parametrize(
    "text, said",
    [
        ("cases: []", "no cases"),
        ("- a", "not a mapping"),
        ("cases: [{package: a.pt2, bugdet_s: 1}]", "case 0: bugdet_s"),
        ("cases: [{package: a.pt2, budget_s: -1}]", "case 0: budget_s"),
        ("cases: [{package: a.pt2, gpus: many}]", "gpus is no number"),
        ("cases: [{package: a.pt2}, {package: b/a.pt2}]", "two cases have one name"),
        ("cases: [{package: '*.pt2', inputs: '*.pt'}]", "more than one pattern"),
        ("cases: [{package: '*.pt2'}]", "no file matches"),
        ("cases: [{name: ../x, package: a.pt2}]", "no name for a file"),
        ("cases: [{package: a.pt2", "cannot be read"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """A wrong file is told by the number of the case and what is allowed."""
    with pytest.raises(ProblemError) as refused:
        plan(tmp_path, text)
    assert said in str(refused.value) and (refused.value.allowed or "no file" in said)


def test_a_sweep_json_of_somebody_else_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only a folder with the results of an earlier sweep is taken up again."""
    (tmp_path / "cases.yaml").write_text("cases: [{package: x.pt2}]")
    out = tmp_path / "out"
    out.mkdir()
    (out / "sweep.json").write_text('{"mine": true}')
    assert main_run(["sweep", str(tmp_path / "cases.yaml"), "--out", str(out)]) == 2
    assert "out holds other files" in capsys.readouterr().err
    assert (out / "sweep.json").read_text() == '{"mine": true}'
