"""What a log or package file shows alone: errors, and files missing, cut or for another machine."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.diagnose import detect, diagnose
from mcp_server.diagnosis.observe.program import put_back
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence, ranked
from mcp_server.logs.log import read_log
from mcp_server.model import Category, PackageWorkload, ScriptWorkload, Verdict
from mcp_server.runtime.context import Context
from mcp_server.tools.machine import Problem
from tests.conftest import Zoo
from tests.diagnosis.support import (
    GOOD_IDS,
    GUARD,
    RAISED,
    by,
    called,
    capture,
    failing,
    look,
    package_case,
    phase,
    run,
    worker_run,
)
from tests.package.archives import changed, unweighted, without
from tests.served import served
from tests.support.command import output_of
from tests.zoo.names import nightly

CHECKED = "run_with_input_checks"
OUT_OF_MEMORY = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


def categories(case: DiagnosisState) -> list[Category]:
    return [h.category for h in by("log_text.detect_from_log", case)]


def test_one_cause_is_named_and_several_are_weak() -> None:
    """A text of one category has a fix, an ambiguous text has candidates. Our own checks are no evidence."""
    (sure,) = detect(failing(DiagnosisState(None), OUT_OF_MEMORY))
    assert (sure.category, sure.weak, sure.fix is not None) == ("out_of_memory", False, True)
    several = list(detect(failing(DiagnosisState(None), RAISED)))
    assert len(several) > 1
    assert all(h.weak and h.fix is None and not h.steps for h in several)
    case = DiagnosisState(None)
    case.runs |= {"plain": run("plain", "", called()), "checked": run("checked", RAISED)}
    assert categories(case) == []
    case.log, case.log_source = read_log(["fine", OUT_OF_MEMORY]), "crash.log"
    (found,) = detect(case)
    assert found.evidence[0].source == "crash.log, line 2"


def test_inputs_that_fit_narrow_an_ambiguous_text(zoo: Zoo) -> None:
    """Bad inputs are candidates until they were compared and the package's check was run."""
    case = failing(package_case(zoo("ranker"), GOOD_IDS), RAISED)
    assert "input_mismatch" in categories(case)
    case.done.append(CHECKED)
    (left,) = by("log_text.detect_from_log", case)
    assert left.category == "index_out_of_bounds" and not left.weak
    case.interpreted = worker_run({**GUARD, "text": "no"})
    assert "input_mismatch" in categories(case)
    case = failing(package_case(zoo("ranker"), replace(GOOD_IDS, dtype="int32")), RAISED)
    case.done.append(CHECKED)
    assert categories(case) == ["index_out_of_bounds", "input_mismatch"]


OWN_STATEMENT = """Traceback (most recent call last):
  File "/app/serve.py", line 9, in main
    print(scores[8])
IndexError: index 8 is out of bounds for dimension 0 with size 8"""
OWN_CHECK = """Traceback (most recent call last):
  File "/app/serve.py", line 9, in main
    raise Rejected(8)
Rejected: 8"""


def after_calls(text: str, **calls: object) -> DiagnosisState:
    """Make a program that ended in `text` after two calls that returned, and return again."""
    case = DiagnosisState(None)
    facts = {"load": 0, "thread": 1, "thread_name": "MainThread", **calls}
    case.capture = capture(calls=[phase(n, **facts) for n in (1, 2)])
    case.runs["script"] = run("script", text)
    case.runs["plain"] = run("plain", "", called())
    return case


def test_what_a_check_of_the_script_admits() -> None:
    """Concurrency is possible if threads call or an input changed, wrong_output unless eager agrees."""
    case = after_calls(OWN_CHECK)
    assert "concurrency" not in categories(case) and "wrong_output" in categories(case)
    case.interpreted = worker_run({"event": "compared", "equal": True, "outputs": []})
    assert "wrong_output" not in categories(case)
    written = after_calls(OWN_CHECK)
    told = phase(3, storage="input", act="written", interval="call", call=1)
    written.capture = capture(calls=[phase(1, load=1, thread=1)], memory=[told])
    assert "concurrency" in categories(written)
    assert case.capture is not None
    case.capture.calls[1] = case.capture.calls[1].model_copy(update={"thread_name": "worker"})
    assert "concurrency" in categories(case)


@pytest.mark.parametrize(
    ("kind", "weak"),
    [("ValueError", True), ("RuntimeError", True), ("torch.AcceleratorError", True), ("NameError", False)],
)
def test_a_log_alone_does_not_settle_an_exception_over_values(kind: str, weak: bool) -> None:
    """A statement may fail because of the package's outputs, which only a run can show. A name may not."""
    case = DiagnosisState(None)
    text = OWN_STATEMENT.rpartition("IndexError")[0] + f"{kind}: zip() argument 2 is shorter than argument 1"
    case.log, case.log_source = read_log(text.splitlines()), "crash.log"
    (found,) = detect(case)
    assert (found.category, found.weak) == ("script_error", weak)


def test_the_last_words_of_a_program_that_ended_itself() -> None:
    """An error status without a known error counts as a check of the program. Success does not."""
    case = after_calls("wrong answers for frames [0, 1]")
    assert "script_error" in categories(case)
    assert next(iter(detect(case))).evidence[0].fact.startswith("wrong answers for frames")
    case.runs["script"] = run("script")
    assert categories(case) == []


def test_a_defect_is_harmful_when_something_failed(zoo: Zoo, tmp_path: Path) -> None:
    """A package without its library is incomplete. A failing call makes that the cause."""
    case = package_case(changed(zoo("ranker"), tmp_path / "incomplete.pt2", without(".so")))
    before = list(detect(case))
    assert before and not any(h.harmful for h in before)
    after = list(detect(failing(case)))
    assert after and all(h.harmful for h in after)


@pytest.mark.parametrize(("loads", "kind"), [([], "package"), ([1], "package"), ([2], None)])
def test_a_load_that_got_no_weights(zoo: Zoo, tmp_path: Path, loads: list[int], kind: str | None) -> None:
    """The package lacks weights, even if another load got them."""
    case = failing(package_case(changed(zoo("ranker"), tmp_path / "none.pt2", unweighted)))
    case.capture = capture(
        loads=[phase(n, number=n, loader="AOTIModelPackageLoader", package="none.pt2") for n in (1, 2)],
        updates=[phase(3, load=load, how="load_constants") for load in loads],
        calls=[phase(4, load=2, thread=1, outcome="unfinished", file=Path(__file__))],
    )
    found = by("environment.detect_loading", case)
    assert [h.guilty.kind for h in found] == ([kind] if kind else [])
    assert all(h.category == "constants" for h in found)


def problem(certain: bool) -> Problem:
    return Problem(category="arch_mismatch", what="the kernels need another GPU", certain=certain)


@pytest.mark.parametrize(("said", "sure"), [("Segmentation fault", "likely"), ("no kernel image", "proven")])
def test_a_machine_that_does_not_fit(zoo: Zoo, said: str, sure: str) -> None:
    """A certain problem is a suspect. The driver's refusal of the architecture proves it."""
    texts = {"no kernel image": "CUDA error: no kernel image is available for execution on the device"}
    case = failing(package_case(zoo("ranker")), texts.get(said, said))
    case.problems = (problem(True), problem(False))
    (found,) = by("environment.detect_machine", case)
    assert found.category == "arch_mismatch" and confidence(found, case) == sure
    assert found.summary.startswith("The kernels")


def test_a_refusal_that_names_no_component_is_no_proof() -> None:
    """The text says that the driver has no kernel for this GPU, but not for which package."""
    case = failing(DiagnosisState(PackageWorkload(package=Path("m.pt2"))), NO_IMAGE)
    (found,) = [each for each in detect(case) if each.category == "arch_mismatch"]
    assert not found.guilty.name and confidence(found, case) == "likely"


NO_IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"


def opened(package: Path, directory: Path, size: int) -> DiagnosisState:
    """Make a case whose package was opened, and had `size` bytes when the program loaded it."""
    case = DiagnosisState(None)
    case.call = CallSpec("replay", {"package": str(package)}, package)
    case.capture = capture(loads=[phase(2, loader="L", package=str(package), outcome="failed", bytes=size)])
    anyio.run(look("open_package").act, case, Context(directory, Path("python")))
    return case


@pytest.mark.parametrize("left", [None, b"PK half"])
def test_a_package_that_the_program_took_away(tmp_path: Path, left: bytes | None) -> None:
    """The package may have been complete when it was loaded, so nothing is claimed or replayed."""
    package = tmp_path / "large.pt2"
    if left is not None:
        package.write_bytes(left)
    case = opened(package, tmp_path, 4000)
    assert list(detect(case)) == [] and not case.failed
    assert case.call is None and "had 4000 bytes when the program loaded it" in case.notes[0]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:5f0c8a9d1b7e44c2\nsize 298384\n"
SOURCE = "#include <sensor.h>\nint opened() { return 1; }\n"


def built(directory: Path, **variables: Path) -> str:
    """What g++ prints for a library that needs `sensor.h` and `libsensor.so`."""
    source, own = directory / "opened.cpp", directory / "own"
    source.write_text(SOURCE)
    own.mkdir()
    (own / "sensor.h").touch()
    argv = ["g++", "-shared", "-fPIC", str(source), "-idirafter", str(own), "-lsensor", "-o", "opened.so"]
    env = {**os.environ, "LC_ALL": "C", **{name: str(path) for name, path in variables.items()}}
    return output_of(argv, cwd=directory, env=env).stderr


def compile_failed(output: str, flags: dict[str, str]) -> DiagnosisState:
    """Make a program whose compile failed with this output, under these variables."""
    case = DiagnosisState(ScriptWorkload(script=Path("build.py")))
    case.capture = capture(compiles=[phase(1, how="aoti_compile_and_package", outcome="failed", flags=flags)])
    case.runs["script"] = run("script", f"CppCompileError: C++ compile error\n\nOutput:\n{output}")
    return case


@pytest.mark.parametrize("content", [POINTER, b"<html><body>404", b"\x7fELF\x02\x01\x01"])
def test_a_library_that_is_none_is_proven_by_the_linkers_refusal(tmp_path: Path, content: bytes) -> None:
    """The real linker's message names the file."""
    sdk = tmp_path / "sdk"
    sdk.mkdir()
    (sdk / "libsensor.so").write_bytes(content)
    output = built(tmp_path, LIBRARY_PATH=sdk)
    case = compile_failed(output, {"LIBRARY_PATH": f"/opt/lib:{sdk}"})
    (best,) = ranked(detect(case), case)
    assert (best.category, confidence(best, case)) == ("toolchain", "proven")
    assert best.guilty.name.endswith("libsensor.so")


# Packages that a script overwrites are restored, because the user built them.

PACKAGES = """import sys
from torch._inductor.package import package_aoti

for name in ("kept.pt2", "new.pt2"):
    package_aoti(name, {"model": ["generated.cpp"]})
sys.exit("then it fails")
"""


def of_script(folder: Path, in_place: bool) -> Verdict:
    script = folder / "serve.py"
    script.write_text(PACKAGES)
    (folder / "generated.cpp").write_text("// code")
    (folder / "kept.pt2").write_bytes(b"the user's own build")
    job = folder / "job"
    job.mkdir()
    context = Context(directory=job, python=Path(sys.executable))
    workload = ScriptWorkload(script=script, cwd=folder)
    return served(diagnose, context, workload, budget_s=60, in_place=in_place)


@pytest.mark.parametrize("in_place", [False, *nightly(True)])
def test_a_package_that_a_script_writes_over_is_put_back(tmp_path: Path, in_place: bool) -> None:
    """Bytes and times are restored, and the verdict says so. `in_place` keeps the script's version."""
    found = of_script(tmp_path, in_place)
    same = (tmp_path / "kept.pt2").read_bytes() == b"the user's own build"
    assert same == (not in_place), found
    assert any("kept.pt2 was restored" in remark for remark in found.remarks) == (not in_place)
    assert any("created new.pt2" in remark for remark in found.remarks) == (not in_place)
    assert (tmp_path / "new.pt2").exists()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"serve.py", "generated.cpp", "kept.pt2", "new.pt2", "job"}


def test_what_cannot_be_put_back_is_told_with_its_copy(tmp_path: Path) -> None:
    """The copy is named, or the file was too large to copy. An unchanged file is not mentioned."""
    copy, same = tmp_path / "before", tmp_path / "same.pt2"
    copy.write_bytes(b"own")
    same.write_bytes(b"own")
    case = DiagnosisState(None)
    paths = {"gone": tmp_path / "no" / "a.pt2", "large": tmp_path / "b.pt2", "same": same}
    case.capture = capture(
        overwritings=[
            {"path": paths["gone"], "kept": copy},
            {"path": paths["large"], "notice": "larger than is copied"},
            {"path": paths["same"], "kept": copy},
        ]
    )
    gone, large = put_back(case)
    assert str(copy) in gone and "could not be restored" in gone
    assert large.startswith("b.pt2 was overwritten") and same.read_bytes() == b"own"
