"""Arguments, flat or without a name, become a workload, or an error that says what to pass instead."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, get_args

import pytest

from mcp_server.cli.parameters import arguments_of, targets_of
from mcp_server.errors import ProblemError
from mcp_server.model import CommandWorkload, ExportedWorkload, PackageWorkload, ScriptWorkload, TensorSpec
from mcp_server.operations.arguments import (
    CheckArguments,
    Checker,
    DiagnoseArguments,
    DumpArguments,
    ExplainArguments,
    InspectArguments,
    PairArguments,
    ReduceArguments,
    RepeatArguments,
    TryArguments,
    WorkloadArguments,
    validated,
)
from mcp_server.operations.table import question_of
from mcp_server.operations.workload import paired_model, symptom_of, workload_of
from mcp_server.tools.fault_methods import Tool
from tests.conftest import ZooPackage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A script, an inputs file, an archive of torch.export and something that is no package."""
    (tmp_path / "app.py").write_text("print('hello')")
    (tmp_path / "batch.pt").write_bytes(b"PK")
    (tmp_path / "broken.pt2").write_bytes(b"PK\3\4 cut")
    with zipfile.ZipFile(tmp_path / "program.pt2", "w") as archive:
        archive.writestr("program/models/model.json", "{}")
    return tmp_path


def built(folder: Path, **values: Any) -> object:
    return workload_of(validated(WorkloadArguments, {"cwd": str(folder), **values}))


def test_a_script_with_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths start at cwd, and that in the directory of the process; the rest passes through."""
    monkeypatch.chdir(folder.parent)
    workload = built(folder, cwd=folder.name, script="app.py", script_args=["--fast"], env={"A": "1"})
    assert workload == ScriptWorkload(
        script=folder / "app.py", args=["--fast"], cwd=folder, env={"A": "1"}, timeout_s=300
    )


def test_a_damaged_package_is_not_refused_here(folder: Path) -> None:
    """A file that is no readable package is for the steps to judge: that is a finding."""
    workload = built(folder, package="broken.pt2", inputs="batch.pt", device_index=1)
    assert isinstance(workload, PackageWorkload)
    assert workload.package == folder / "broken.pt2"
    assert workload.inputs == folder / "batch.pt"


def test_what_is_reduced_takes_what_the_other_tools_take(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script with arguments and variables, or a program with specs and imports, run in its own folder."""
    monkeypatch.chdir(folder.parent)
    around = {"cwd": folder.name, "env": {"A": "1"}, "timeout_s": 9}
    script = {**around, "script": "app.py", "script_args": ["--fast"]}
    assert paired_model(validated(ReduceArguments, script)) == ScriptWorkload(
        script=folder / "app.py", args=["--fast"], cwd=folder, env={"A": "1"}, timeout_s=9
    )
    specs = [{"shape": [2, 3], "dtype": "float32"}]
    program = {**around, "exported": "program.pt2", "inputs": specs, "extra_imports": ["ops.py"]}
    assert paired_model(validated(ReduceArguments, program)) == ExportedWorkload(
        exported=folder / "program.pt2",
        inputs=[TensorSpec(shape=[2, 3], dtype="float32")],
        extra_imports=["ops.py"],
        cwd=folder,
        env={"A": "1"},
        timeout_s=9,
    )
    del script["script"]
    with pytest.raises(ProblemError, match="script_args are given without a script"):
        paired_model(validated(ReduceArguments, {**script, "exported": "program.pt2"}))


@pytest.mark.parametrize("as_text", [False, True])
def test_specs_as_list_or_json_text(folder: Path, as_text: bool) -> None:
    """Specs may come as JSON or, since some clients send every argument as text, as its text."""
    given = (
        '[{"shape": [2, 3], "dtype": "int64", "high": 9}]'
        if as_text
        else [{"shape": [2, 3], "dtype": "int64", "high": 9}]
    )
    workload = built(folder, package="broken.pt2", inputs=given)
    assert isinstance(workload, PackageWorkload)
    assert workload.inputs == [TensorSpec(shape=[2, 3], dtype="int64", high=9)]


def test_a_command(folder: Path) -> None:
    """A command is taken as an argument list, whose program must be there."""
    workload = built(folder, command=["env", "model.pt2"])
    assert isinstance(workload, CommandWorkload) and workload.argv == ["env", "model.pt2"]
    with pytest.raises(ProblemError, match="no such program"):
        built(folder, command=["host-that-is-not-there", "model.pt2"])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "no workload given; allowed: exactly one of script, package, exported, command"),
        ({"script": "app.py", "package": "broken.pt2"}, "more than one workload given: 'script, package'"),
        ({"script": "no.py"}, "script does not exist"),
        ({"script": "."}, "script is a directory, not a file"),
        ({"script": "app.py", "cwd": "/dev/null"}, "cwd is not a directory"),
        ({"script": "app.py", "inputs": "batch.pt"}, "inputs does not apply to a script"),
        ({"script": "app.py", "python": "batch.pt"}, "python is not executable"),
        ({"command": ["x"], "extra_imports": ["ops"]}, "extra_imports does not apply to a command"),
        ({"package": "program.pt2"}, "next: pass the same path as exported"),
        ({"package": "broken.pt2", "inputs": "[{"}, "inputs looks like specs but is not JSON"),
        ({"package": "broken.pt2", "inputs": [{"shape": [-1]}]}, "inputs[0].shape[0]: Input should be"),
        ({"package": "broken.pt2", "inputs": [{"size": [1]}]}, "inputs[0].shape: Field required"),
        ({"package": "a\0b"}, "a path holds a NUL byte"),
        ({"script": "app.py", "timeout_s": 0}, "argument 'timeout_s'"),
        ({"script": "app.py", "env": {"A": 1}}, "argument 'env.A'"),
        ({"script": ["app.py"]}, "argument 'script'"),
        ({"scriptt": "app.py"}, "unknown argument 'scriptt' (did you mean 'script'?)"),
    ],
)  # fmt: skip
def test_bad_arguments(folder: Path, values: dict[str, Any], said: str) -> None:
    """Each wrong call is answered with what is wrong and what is allowed."""
    with pytest.raises(ProblemError) as problem:
        built(folder, **values)
    assert said in str(problem.value)


def test_a_program_is_the_reference_of_its_package(folder: Path) -> None:
    """diagnose takes the two together; what makes one run still takes one workload."""
    pair = {"package": "broken.pt2", "exported": "program.pt2", "cwd": str(folder)}
    given = validated(DiagnoseArguments, pair)
    workload = workload_of(given)
    assert isinstance(workload, PackageWorkload)
    assert symptom_of(given, workload).program == folder / "program.pt2"
    with pytest.raises(ProblemError, match="more than one workload given"):
        workload_of(validated(RepeatArguments, pair))


def test_a_compiled_package_as_exported(folder: Path, zoo: Any) -> None:
    """A compiled package in the place of an exported program is sent to the right argument."""
    with pytest.raises(ProblemError) as problem:
        built(folder, exported=str(zoo("ranker")))
    assert problem.value.next_call == "pass the same path as package"


def test_questions() -> None:
    """At most one question, except an assertion with the kernel that printed it."""
    both = InspectArguments(package="m.pt2", assertion="0 <= tmp4 < 10", kernel="k", generated_line=30)
    question = question_of(both)
    assert question is not None and question.kernel == "k" and question.generated_line == 30
    assert question_of(InspectArguments(package="m.pt2")) is None
    with pytest.raises(ProblemError, match="more than one question"):
        question_of(InspectArguments(package="m.pt2", launch=0, buffer="buf1"))
    with pytest.raises(ProblemError, match="goes with an assertion"):
        question_of(InspectArguments(package="m.pt2", generated_line=3))


def test_the_checkers_are_those_of_the_step() -> None:
    """The schema lists every checker that locate_fault knows, and auto."""
    assert set(get_args(Checker)) == {"auto", *get_args(Tool)}


@pytest.mark.parametrize("model", [CheckArguments, DumpArguments, PairArguments, RepeatArguments])
def test_a_package_stands_without_a_name(model: type, zoo: ZooPackage) -> None:
    """As the option `--package` would say it; an exported program is told apart by its content."""
    package = str(zoo("ranker"))
    found = arguments_of(model, {"target": package, "rest": []})
    assert found == arguments_of(model, {"package": package})
    if "exported" in model.model_fields:  # type: ignore[attr-defined]
        program = package.replace(".pt2", ".exported.pt2")
        assert arguments_of(model, {"target": program}) == arguments_of(model, {"exported": program})


def test_a_target_that_the_command_does_not_take_is_refused() -> None:
    """The error says what it takes."""
    with pytest.raises(ProblemError, match="does not take a script") as raised:
        arguments_of(CheckArguments, {"target": "serve.py"})
    assert raised.value.allowed == "a package (.pt2)"


def test_a_command_that_runs_nothing_has_no_target() -> None:
    """`explain-error` takes a text or a log, each by its name; `try-fix` has its package already."""
    assert not targets_of(ExplainArguments) and not targets_of(TryArguments)
    with pytest.raises(ProblemError):
        arguments_of(CheckArguments, {"target": str(Path("nothing.txt"))})
