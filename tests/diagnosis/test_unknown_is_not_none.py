"""What was not seen is called neither fault nor "no fault": scripts, unreadable files, a partial state."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_server.diagnosis.diagnose import detect, observations
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import conclude
from mcp_server.errors import ProblemError
from mcp_server.model import PackageWorkload, ScriptWorkload
from mcp_server.package.archive import open_package
from mcp_server.package.mismatch import GivenTensor, compare_inputs
from mcp_server.runtime.context import Context
from mcp_server.worker.report import TensorFacts
from tests.conftest import Zoo
from tests.diagnosis.support import (
    GOOD_IDS,
    called,
    capture,
    failing,
    index_text,
    package_case,
    phase,
    run,
    worker_run,
)
from tests.package.archives import changed, without
from tests.support.command import CLI, ran
from tests.support.tools import of_package, tool, verdict
from tests.zoo.names import few, thorough

Sourceless = Callable[[str], Path]


@pytest.fixture
def sourceless(zoo: Zoo, tmp_path: Path) -> Sourceless:
    """A function that makes the zoo's package without its C++ sources, next to its inputs."""

    def make(name: str) -> Path:
        package = changed(zoo(name), tmp_path / f"{name}.pt2", without(".wrapper.cpp"))
        inputs = zoo(name).with_name(f"{name}.inputs.pt")
        (tmp_path / f"{name}.inputs.pt").symlink_to(inputs)
        return package

    return make


def of_script(directory: Path, code: str) -> Any:
    script = directory / "serve.py"
    script.write_text(code)
    return verdict(directory, ScriptWorkload(script=script, cwd=directory))


OWN_FAILURES = {
    "unreadable": ("x = 1\ndef f(:\n    pass\n", 2, "SyntaxError"),
    "raises": ("def load():\n    raise RuntimeError('no config')\n\n\nload()\n", 2, "no config"),
    "fails in a library": ("import json\njson.loads('{')\n", 2, "JSONDecodeError"),
}


@pytest.mark.parametrize(("code", "line", "text"), OWN_FAILURES.values(), ids=OWN_FAILURES)
def test_a_failure_of_the_script_is_a_script_error(tmp_path: Path, code: str, line: int, text: str) -> None:
    """The line is named, and AOTInductor is not blamed, since none of it had run."""
    found = of_script(tmp_path, code)
    assert (found.outcome, found.category) == ("fault", "script_error"), found.summary
    assert found.guilty is not None and found.guilty.name == f"{tmp_path / 'serve.py'}:{line}"
    assert not found.next_steps
    assert text in found.summary and "Your script stopped at serve.py:2: " in found.summary


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('all went well')\n", "processes compiled, loaded or called a package"),
        ("raise ModuleNotFoundError(\"No module named 'torch'\")\n", "torch cannot be imported"),
        ("import no_such_module\n", "no_such_module"),
    ],
)
def test_a_script_without_aotinductor_is_inconclusive(tmp_path: Path, code: str, words: str) -> None:
    """A wrapper that starts something else is not called healthy. An inactive environment is no error."""
    found = of_script(tmp_path, code)
    assert found.outcome == "inconclusive" and words in found.summary.lower()


@pytest.mark.slow
def test_a_package_without_sources_takes_unknown_inputs(sourceless: Sourceless, tmp_path: Path) -> None:
    """It runs, so there is no fault, and the verdict says that the inputs were not compared."""
    package = sourceless("ranker")
    found = of_package(lambda name: package, tmp_path, "ranker", "inputs")
    assert found.outcome == "no_fault", found.summary
    assert "does not say which inputs it takes" in found.summary


def test_nothing_differs_from_an_unknown_signature(sourceless: Sourceless) -> None:
    """Against an unknown signature neither count nor dtype is wrong; for the whole package both would be."""
    signature = open_package(sourceless("ranker")).signature
    assert not signature.known and signature.notes
    assert compare_inputs(signature, [GivenTensor("int8", (3,))] * 7) == []


def shown(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    done = ran([*CLI, *arguments], tmp_path)
    return done.returncode, done.stdout


UNREADABLE = b"\x80\x04cos\nsystem\n(S'touch owned'\ntR."  # a pickle that runs code


@thorough
def test_inputs_that_cannot_be_read_are_no_success(zoo: Zoo, tmp_path: Path) -> None:
    """`check-devices` first says that nothing is known about them, and exits as for "inconclusive"."""
    (tmp_path / "inputs.pt").write_bytes(UNREADABLE)
    code, text = shown(tmp_path, "check-devices", "--package", str(zoo("ranker")), "--inputs", "inputs.pt")
    assert code == 3, text
    assert text.lstrip().startswith("summary") and "not known whether the inputs fit" in text.splitlines()[0]
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("taken", ["diagnose", "try_fix"])
def test_a_wrong_model_name_is_a_wrong_call(zoo: Zoo, tmp_path: Path, taken: str) -> None:
    """The error lists the package's names. Nothing is run, and the package is not blamed."""
    with pytest.raises(ProblemError) as caught:
        tool(taken, tmp_path, package=zoo("ranker"), model_name="nope")
    assert (caught.value.value, caught.value.allowed) == ("nope", "model")


OUT_OF_SIGHT = """import subprocess, sys
HOST = '''
import sys, torch
model = torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], "model", False, 1, -1)
first, second = torch.load(sys.argv[2], weights_only=True)
right = model.run([first, second])[0]
turned = model.run([first, second.t().contiguous().t()])[0]
sys.exit(0 if torch.equal(turned, right) else "the host gives other scores")
'''
# As a host in another language: no hook of ours is in that process.
subprocess.run([sys.executable, "-I", "-c", HOST, *sys.argv[1:]], check=True)
"""


# A correct self-test in Python, before the host starts.
SELF_TEST = """import sys, torch
ready = torch._inductor.aoti_load_package(sys.argv[1])
assert torch.isfinite(ready(*torch.load(sys.argv[2], weights_only=True))).all()
"""


@thorough
@pytest.mark.parametrize(
    "before",
    [pytest.param("", id="alone", marks=thorough), pytest.param(SELF_TEST, id="after a call in Python")],
)
def test_a_host_out_of_sight_is_told_what_the_package_refuses(zoo: Zoo, tmp_path: Path, before: str) -> None:
    """The hook did not see the failing call, but the host's recording shows the input with other strides."""
    package = zoo("logarithm")
    script = tmp_path / "serve.py"
    script.write_text(before + OUT_OF_SIGHT)
    words = [str(package), str(package.with_name("logarithm.inputs.pt"))]
    found = verdict(tmp_path, ScriptWorkload(script=script, args=words, cwd=tmp_path))
    assert (found.outcome, found.category, found.confidence) == ("fault", "input_mismatch", "proven")
    assert found.guilty is not None and found.guilty.input_index == 1


# What an observation may set in the state. A part keeps its first value if its observation was not made.
PARTS = (
    *("package", "given", "leaves", "mismatches", "capture", "call", "interpreted", "repeated", "runs"),
    *("workload", "operators"),
)
RAISED = {
    "event": "node_raised",
    "node": "embedding",
    "op": "aten.embedding.default",
    "text": "IndexError: index out of range in self",
    "stack": [{"file": "model.py", "line": 3, "code": "self.table(ids)"}],
}


def observed(package: Path) -> DiagnosisState:
    """A failing call of a program after all cheap observations."""
    case = failing(package_case(package, GOOD_IDS), index_text(package))
    case.leaves = [TensorFacts(kind="tensor", shape=[8, 6], dtype="int64", stride=[6, 1])]
    call = phase(3, load=1, thread=2, thread_name="worker", outcome="failed")
    update = phase(2, load=1, how="load_constants", arguments=[True], constants={"head.bias": {"nan": 3}})
    loads = [phase(1, loader="AOTIModelPackageLoader", package=str(package), options={})]
    case.capture = capture(loads=loads, updates=[update], calls=[call])
    case.runs["script"] = run("script", index_text(package))
    case.runs["checked"] = run("checked", "", called(nan=2))
    case.interpreted = worker_run(RAISED, {"event": "compared", "equal": False, "outputs": []})
    case.repeated = worker_run({"event": "repeated", "run": "second", "equal": False})
    return case


@settings(max_examples=few(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(missing=st.sets(st.sampled_from(PARTS)))
def test_nothing_relies_on_what_was_not_looked_at(zoo: Zoo, missing: set[str]) -> None:
    """Whatever is missing, every detector and gain answers, and a verdict is possible, but no proven one.

    No intervention was tried, and the call itself is no refusal.
    """
    case, empty = observed(zoo("ranker")), DiagnosisState(None)
    complete = {suspect.category for suspect in detect(case)}
    assert {"index_out_of_bounds", "constants"} <= complete, "else these tests would show nothing"
    for part in missing:
        setattr(case, part, getattr(empty, part))
    suspects = detect(case)
    assert all(suspect.summary and suspect.evidence for suspect in suspects)
    assert all(0.0 <= each.gain(case, suspects) <= 1.0 for each in observations())
    if "workload" not in missing:
        verdict = conclude(suspects, case, Context(Path("job"), Path("python")))
        assert verdict.confidence != "proven" and verdict.summary
        assert (verdict.outcome == "fault") <= (verdict.category is not None)


REFUSING = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True)
parser.parse_args()
"""


def test_a_script_that_refuses_its_arguments_is_told_so(tmp_path: Path) -> None:
    """The verdict names the missing argument, and says where arguments go on our command line."""
    found = of_script(tmp_path, REFUSING)
    assert (found.outcome, found.category) == ("fault", "script_error"), found.summary
    assert "--batch" in found.summary and "after --" in found.summary and not found.next_steps


def test_what_nothing_could_be_run_with_is_not_tried_again(zoo: Zoo, tmp_path: Path) -> None:
    """The next step asks for a different Python, for other inputs, or for the missing inputs."""
    pickled = tmp_path / "inputs.pt"
    pickled.write_bytes(pickle.dumps([1, Path("x")], protocol=2))
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexec /usr/bin/false\n")
    bare.chmod(0o755)
    package = zoo("ranker")
    for workload in (
        PackageWorkload(package=package, inputs=pickled),
        PackageWorkload(package=package),
        PackageWorkload(package=package, inputs=package.with_name("ranker.inputs.pt"), python=bare),
    ):
        directory = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        found = verdict(directory, workload)
        given = workload.model_dump(mode="json", exclude_none=True)
        for step in found.next_steps:
            assert any(str(value).startswith("path/to/") for value in step.arguments.values()), found.summary
            assert step.arguments != given
