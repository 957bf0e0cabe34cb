"""Exit codes, and errors for wrong calls. docs/cli.md has the table of codes."""

import asyncio
import json
import os
import pickle
import re
import shlex
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_server.cli import main
from mcp_server.cli.main import Exit, exit_code
from mcp_server.jobs.store import Store
from mcp_server.model import Record, Verdict
from mcp_server.operations.table import OPERATIONS, command_name
from mcp_server.package import dataflow, kernels, wrapper
from tests.conftest import ROOT, Zoo
from tests.jobs.support import ASKED, asked_before
from tests.support.command import CLI, ran
from tests.support.servers import Speaker, serving
from tests.zoo.names import THOROUGH, nightly, thorough

# Exit codes. The same calls show that no package is read on the event loop, which would block requests.


class Step(Record):
    """The fields of results that determine the exit code."""

    outcome: str = ""
    failure: str | None = None
    fault: str | None = None
    pattern: str = "clean"
    undecided: str = ""


@pytest.mark.parametrize(
    ("result", "code"),
    [
        # a verdict that does not know is not a pass
        (Verdict(outcome="no_fault", summary=""), Exit.OK),
        (Verdict(outcome="fault", summary=""), Exit.FAULT),
        (Verdict(outcome="inconclusive", summary=""), Exit.INCONCLUSIVE),
        (Step(), Exit.OK),
        (Step(failure="SIGSEGV"), Exit.FAULT),
        (Step(fault="read"), Exit.FAULT),
        (Step(pattern="flaky"), Exit.FAULT),
        (Step(undecided="no torch"), Exit.INCONCLUSIVE),
        # compare-with-eager
        (Step(outcome="agrees"), Exit.OK),
        (Step(outcome="differs"), Exit.FAULT),
        (Step(outcome="inconclusive"), Exit.INCONCLUSIVE),
        (Step(outcome="inconclusive", failure="eager fails"), Exit.FAULT),
        # try-fix
        (Step(outcome="fixed"), Exit.OK),
        (Step(outcome="passes"), Exit.OK),
        (Step(outcome="harmful"), Exit.FAULT),
        (Step(outcome="same"), Exit.FAULT),
        (Step(outcome="changed"), Exit.FAULT),
        (Step(outcome="no_failure"), Exit.INCONCLUSIVE),
        (Step(outcome="not_applicable"), Exit.INCONCLUSIVE),
        # reduce and bisect have the program's failure
        (Step(outcome="reduced", failure="crash"), Exit.FAULT),
        (Step(outcome="replayed"), Exit.OK),
        (Step(outcome="not_reduced", failure="crash"), Exit.FAULT),
        (Step(outcome="decision", failure="crash"), Exit.FAULT),
        (Step(outcome="not_found", failure="crash"), Exit.FAULT),
        (Step(outcome="rounding", failure="differs"), Exit.OK),
    ],
)
def test_a_result_by_what_it_saw(result: Record, code: Exit) -> None:
    """Failing runs, faults of a checker, repeats that do not all pass, and outcomes determine the code."""
    assert exit_code(result) == code


CALLS = {
    "diagnose": ["PACKAGE"],
    "check-devices": ["--package", "PACKAGE"],
    "run-deterministic": ["PACKAGE", "--repeats", "1"],
    "dump-kernel-io": ["--package", "PACKAGE"],
    "decompile": ["PACKAGE"],
    "locate-fault": ["PACKAGE"],
    "trace-launches": ["PACKAGE"],
    "try-fix": ["PACKAGE", "--change", "0: clamp 0 31"],
    "compare-with-eager": ["--package", "PACKAGE", "--exported", "EXPORTED"],
    "compile-with-flags": ["EXPORTED"],
    "reduce": ["--exported", "EXPORTED"],
    "bisect": ["--exported", "EXPORTED"],
}
"""How each command that runs something is called, without inputs."""
OTHERS = (
    *("explain-error", "inspect-package", "record", "recordings", "post-mortem"),
    *("report", "bundle", "doctor", "sweep"),
)

ASSERTION = "index out of bounds: 0 <= tmp4 < ks1"
HERE = ("--python", sys.executable)
GOOD, BAD, PICKLED = "ranker.inputs.pt", "ranker.bad-index.pt", "pickled.pt"
NO_TORCH = dict.fromkeys(CALLS, 2) | {"diagnose": 3, "check-devices": 3}
UNREADABLE = dict.fromkeys(CALLS, 2) | {"diagnose": 1, "check-devices": 1, "run-deterministic": 1}
# These read inputs in their own ways; others read them like run-deterministic.
REFUSING = (
    set(CALLS) - {"compile-with-flags"}
    if THOROUGH
    else {"diagnose", "check-devices", "run-deterministic", "try-fix"}
)
BY_INPUTS = {
    GOOD: {
        "diagnose": 0,
        "check-devices": 0,
        "run-deterministic": 0,
        "dump-kernel-io": 0,
        "decompile": 0,
        "locate-fault": 0,
        "trace-launches": 0,
        "try-fix": 3,  # no failure to mend
        "compare-with-eager": 0,
        **({"reduce": 2, "bisect": 2} if THOROUGH else {}),  # no failure to keep; each compiles
    },
    BAD: {
        "diagnose": 1,
        "check-devices": 0,  # compares no values
        "run-deterministic": 1,
        "dump-kernel-io": 1,
        "decompile": 1,
        "locate-fault": 1,
        "trace-launches": 1,
        "try-fix": 0,  # the change mends it
        "compare-with-eager": 1,
    },
    PICKLED: {name: code for name, code in NO_TORCH.items() if name in REFUSING},
}


EARLY = {(GOOD, "diagnose"), (BAD, "diagnose"), (BAD, "trace-launches"), (PICKLED, "run-deterministic")}
"""What `make test` tries: a command for each code. The table of steps above has the codes of the others."""


def test_the_tables_have_every_command() -> None:
    """The table above has all commands that run something, and docs/cli.md has a row for each command."""
    steps = {command_name(operation.name) for operation in OPERATIONS}
    assert steps == {*CALLS, "explain-error", "inspect-package", "record", "recordings", "post-mortem"}
    text = (ROOT / "docs" / "cli.md").read_text()
    table = text.split("What the codes mean for each command:")[1].split("Every command ends")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} == {*CALLS, *OTHERS}


@pytest.fixture
def files(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The words of `CALLS` as paths. Relative paths are in the zoo."""
    monkeypatch.chdir(zoo("ranker").parent)
    monkeypatch.setenv("AOTI_DEBUG_STATE", str(tmp_path / "state"))
    return {"PACKAGE": "ranker.pt2", "EXPORTED": "ranker.exported.pt2"}


def typed(command: str, names: dict[str, str], *more: str) -> int:
    return main.run([command, *(names.get(word, word) for word in CALLS[command]), *more])


@pytest.mark.parametrize("command", CALLS)
def test_a_wrong_argument(command: str, files: dict[str, str]) -> None:
    """An unknown option or a missing file gives 2."""
    assert typed(command, files, "--nope") == 2
    assert typed(command, {"PACKAGE": "none.pt2", "EXPORTED": "none.pt2"}) == 2


FIRST = ("diagnose", "reduce")
"""Each reads a workload in a way of its own; the others are tried at night."""
IN_TURN = [*FIRST, *nightly(*(each for each in CALLS if each not in FIRST))]


@pytest.mark.slow
@pytest.mark.parametrize("command", IN_TURN)
def test_no_torch(command: str, files: dict[str, str], bare_python: Path) -> None:
    """A single step cannot run. A diagnosis or a check of inputs is inconclusive."""
    inputs = () if command == "compile-with-flags" else ("-i", GOOD)
    assert typed(command, files, *inputs, "--python", str(bare_python)) == NO_TORCH[command]


@pytest.mark.slow
@pytest.mark.parametrize("command", IN_TURN)
def test_an_unreadable_package(command: str, files: dict[str, str], tmp_path: Path) -> None:
    """Commands that diagnose or load a truncated package find the fault. Others cannot do their work."""
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(Path("ranker.pt2").read_bytes()[:5000])
    inputs = () if command == "compile-with-flags" else ("-i", GOOD)
    names = {"PACKAGE": str(cut), "EXPORTED": str(cut)}
    assert typed(command, names, *inputs, *HERE) == UNREADABLE[command]


class Touch:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def write_pickled(path: Path, touched: Path) -> None:
    """Write a file in the form of torch.save whose pickle runs a command."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pickled/data.pkl", pickle.dumps([Touch(touched)], protocol=2))
        archive.writestr("pickled/version", "3\n")
        archive.writestr("pickled/byteorder", "little")


@pytest.fixture
def on_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect stacks of code that opens archives, parses wrappers or builds dataflows on an event loop."""
    found: list[str] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if asyncio._get_running_loop() is not None:
                frames = [f for f in traceback.extract_stack() if "mcp_server" in f.filename]
                inner = frames[:-6:-1]
                found.append(" < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in inner))
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(zipfile.ZipFile, "__init__", watched(zipfile.ZipFile.__init__))
    monkeypatch.setattr(wrapper, "read_cpp_kernels", watched(kernels.read_cpp_kernels))
    monkeypatch.setattr(dataflow.Dataflow, "__init__", watched(dataflow.Dataflow.__init__))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "command", "code"),
    [
        pytest.param(inputs, command, code, marks=() if (inputs, command) in EARLY else thorough)
        for inputs, codes in BY_INPUTS.items()
        for command, code in codes.items()
    ],
)
def test_by_the_inputs(
    inputs: str, command: str, code: int, files: dict[str, str], tmp_path: Path, on_the_loop: list[str]
) -> None:
    """The inputs have no fault, a fault, or a pickle, which is refused and never run.

    A command reads packages only in threads.
    """
    path, touched = Path(inputs), tmp_path / "touched"
    if inputs == PICKLED:
        path = tmp_path / PICKLED
        write_pickled(path, touched)
    assert typed(command, files, "-i", str(path), *HERE) == code
    assert not touched.exists()
    assert not on_the_loop, "\n".join(dict.fromkeys(on_the_loop))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["explain-error", "--text", "index out of bounds: 0 <= tmp4 < ks1"], 0),
        (["explain-error", "--text", "all is well"], 3),
        (["explain-error", "--text", ASSERTION, "--package", "ranker.pt2"], 0),
        (["inspect-package", "ranker.pt2", "--assertion", ASSERTION], 0),
        (["inspect-package", "ranker.pt2", "--kernel", "none"], 2),
        (["report", "job_00000000", "--out", "out"], 2),
        (["bundle", "job_00000000", "--out", "out.zip"], 2),
        (["sweep", "none.yaml", "--out", "out"], 2),
        *nightly(
            (["diagnose", "logarithm.pt2", "-i", "logarithm.bad-nan.pt", *HERE], 1),
            (["diagnose", "--exported", "ranker.exported.pt2", "-i", BAD, *HERE], 1),
            (["compile-with-flags", "ranker.exported.pt2", *HERE], 0),
        ),
    ],
)
def test_other_calls(
    arguments: list[str], code: int, files: dict[str, str], zoo: Zoo, on_the_loop: list[str]
) -> None:
    """Commands that run nothing answer or fail. NaN is a fault, in a program as well."""
    if "logarithm.pt2" in arguments:
        zoo("logarithm")
    assert main.run(arguments) == code
    assert not on_the_loop, "\n".join(dict.fromkeys(on_the_loop))


# Wrong calls, typed and sent by an MCP client: each gets an error without a traceback. The second table has
# what both check with the same code, such as paths, input specs and handles.

LONG = "a" * 300
SPECS = ("run-deterministic", "model.pt2", "-i")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a pipe, a text, a broken package, and jobs of all kinds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AOTI_DEBUG_STATE", str(tmp_path / "state"))
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "plain.txt").write_text("text\n")
    (tmp_path / "x.py").write_text("")
    (tmp_path / "model.pt2").write_text("no archive")
    (tmp_path / "bomb.yaml").write_text(
        "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
        + "cases: *a8\n"
    )
    (tmp_path / "deep.yaml").write_text("cases: " + "[" * 100_000)
    store = Store(tmp_path / "state")
    jobs = {name: store.create(kind) for name, kind in (("run", "run_deterministic"), ("bad", "diagnose"))}
    asked_before(jobs["run"].path, "run_deterministic", tmp_path, script="x.py")
    asked_before(jobs["bad"].path, "diagnose", tmp_path, script=3)
    running = store.create("diagnose")
    asked_before(running.path, "diagnose", tmp_path, script="x.py")
    deep = store.create("diagnose")
    (deep.path / ASKED).write_text("[" * 100_000)
    (deep.path / "job.json").write_text("[" * 100_000)
    for job in (*jobs.values(), deep):
        job.release()
    (tmp_path / "ids.json").write_text(
        json.dumps({**{name: job.id for name, job in jobs.items()}, "running": running.id, "deep": deep.id})
    )
    yield tmp_path
    running.release()


ANSWERS = [
    ("diagnose x.py --batch 8", "no such option: --batch", "try: aoti-debug diagnose x.py -- --batch 8"),
    ("diagnose x.py --symptm nan", "did you mean --symptom?", "try: aoti-debug diagnose x.py --symptom nan"),
    ("diagnose", "nothing to work on", "expected: a script (.py), a package (.pt2)"),
    ("diagnose bad.pt", "this file holds tensors; it is not a program: bad.pt", "--inputs bad.pt"),
    ("diagnose bad.pt model.pt2", "holds tensors", "try: aoti-debug diagnose model.pt2 --inputs bad.pt"),
    ("diagnose x.py --symptom odd", "no such choice for --symptom: odd", "hang, memory, slow, slow-load"),
    ("diagnose x.py --budget-s 0", "--budget-s is out of range: 0.0", "expected: 1 to 86400"),
    ("diagnose model.pt2 -i nofile.pt", "no such file for --inputs", "nofile.pt"),
    (
        "diagnose x.py --exported model.pt2",
        "--exported is the reference of a package, and a script exports its own",
        "the script alone",
    ),
    ("diagnose --package x.py", "this is no package: give it as --script: x.py", "expected: a .pt2 of torch"),
    ("diagnose model.pt2 -i model.pt2", "this is a package, not inputs: model.pt2", "torch.save"),
    ("check-devices -i x.pt", "without a package", "check-devices model.pt2 --inputs x.pt"),
    ("diagnose x.py --rtol 0.1", "without correct outputs", "try: aoti-debug diagnose x.py\n"),
    ("diagnose", "nothing to work on", "try: aoti-debug diagnose serve.py -- --batch 8"),
    ("try-fix model.pt2 --change", "requires an argument", "clamp 0 9"),
    ("explain-error invalid", "with --text, or a file with --log", "explain-error --text invalid"),
    ("explain-error x.py", "with --text, or a file with --log", "explain-error --log x.py"),
    ("diagnose x.py -i bad.pt", "--inputs does not apply to this script", "package or exported program"),
    ("diagnse x.py", "no such command 'diagnse'", "try: aoti-debug diagnose x.py"),
    ("inspect-package", "missing argument 'PACKAGE'", "try: aoti-debug inspect-package model.pt2"),
    ("sweep cases.yaml --out o --jobs x", "--jobs must be a number: x", "a whole number, such as --jobs 3"),
]

WRONG_CALLS: list[tuple[list[str], dict[str, str], tuple[str, ...]]] = [
    *((line.split(), {}, (what, then)) for line, what, then in ANSWERS),
    # jobs
    (["diagnose", "--resume", "job_1a2b3c4d"], {}, ("no such job",)),
    (["diagnose", "--resume", "../../../etc"], {}, ("not a job handle", "such as job_1a2b3c4d")),
    (["record", "--preload", "nothost"], {}, ("no such program", "expected: a program on PATH")),
    (["run-deterministic", "x.py", "--python", "nopython"], {}, ("no such program for --python", "on PATH")),
    (["diagnose", "--resume", "RUN"], {}, ("not a diagnosis that can be taken up again",)),
    (["diagnose", "--resume", "BAD"], {}, ("damaged, or comes from a different version",)),
    (["diagnose", "--resume", "DEEP"], {}, ("not a diagnosis that can be taken up again",)),
    (["diagnose", "--resume", "RUNNING"], {}, ("the job still runs",)),
    (["diagnose", "--resume", "RUN", "--log", "x"], {}, ("--resume",)),
    # names that are not a file, a program or a folder
    (["explain-error", "--log", "x.py/y"], {}, ("log cannot be reached",)),
    (["run-deterministic", "x.py", "--cwd", LONG], {}, ("cwd cannot be reached",)),
    (["diagnose", "."], {}, ("a folder is not a workload",)),
    (["diagnose", "./plain.txt"], {}, ("not executable",)),
    # impossible values
    ([*SPECS, '[{"shape": [2], "dtype": "uint8", "low": -1}]'], {}, ("expected: 0 to 255",)),
    (["sweep", "bomb.yaml", "--out", "out"], {}, ("stands for more than",)),
    (["sweep", "deep.yaml", "--out", "out"], {}, ("the cases cannot be read",)),
    # settings
    (["doctor"], {"AOTI_DEBUG_LAUNCHER": "nolauncher --x"}, ("program in AOTI_DEBUG_LAUNCHER is not there",)),
    (["doctor"], {"AOTI_DEBUG_LAUNCHER": "no 'end"}, ("AOTI_DEBUG_LAUNCHER is not a valid command line",)),
    (["doctor"], {"AOTI_DEBUG_JOBS": "many"}, ("AOTI_DEBUG_JOBS must be a number of jobs",)),
]


@pytest.mark.parametrize(("typed", "variables", "said"), WRONG_CALLS, ids=lambda each: str(each)[:60])
def test_a_wrong_call_is_told_in_a_line(
    folder: Path,
    typed: list[str],
    variables: dict[str, str],
    said: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, nothing on standard output, and on standard error what is wrong, without a stack."""
    ids = json.loads((folder / "ids.json").read_text())
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code = main.run([ids.get(word.lower(), word) if word.isupper() else word for word in typed])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "\nerror: " in f"\n{err}" and all(each in err for each in said), err  # progress may come first
    assert "Traceback" not in err and "Usage" not in err and len(err) < 2_000


RESULT = 0
"""Not an error of the protocol: the tool's result says what is wrong, with `isError`."""
INVALID = -32602
UNKNOWN_METHOD = -32601

SPEC = {"shape": [2]}


def tool(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "tools/call", {"name": name, "arguments": arguments}


def resource(uri: str) -> tuple[str, dict[str, Any]]:
    return "resources/read", {"uri": uri}


def package(**arguments: Any) -> tuple[str, dict[str, Any]]:
    return tool("run_deterministic", package="broken.pt2", **arguments)


WRONG: list[tuple[tuple[str, dict[str, Any]], int, str]] = [
    # names and types
    (tool("diagnos"), RESULT, "unknown tool 'diagnos' (did you mean 'diagnose'?)"),
    (tool("diagnose", scrpt="x.py"), RESULT, "unknown argument 'scrpt' (did you mean 'script'?)"),
    (tool("diagnose", script=3), RESULT, "argument 'script'"),
    (tool("diagnose", script=["x.py"]), RESULT, "argument 'script'"),
    (tool("diagnose", script="x.py", budget_s="60"), RESULT, "argument 'budget_s'"),
    (tool("diagnose", script="x.py", budget_s=1e12), RESULT, "allowed: 1 to 86400"),
    (tool("diagnose", script="x.py", wait_s=-1), RESULT, "argument 'wait_s'"),
    (tool("diagnose", script="x.py", symptom="odd"), RESULT, "argument 'symptom'"),
    (tool("inspect_package"), RESULT, "missing argument 'package'"),
    (tool("inspect_package", package="x.py", offset=-1), RESULT, "argument 'offset'"),
    (tool("compile_with_flags", exported="x.py", flags={"A": None}), RESULT, "argument 'flags"),
    # arguments that exclude each other
    (tool("diagnose"), RESULT, "no workload given"),
    (tool("diagnose", script="x.py", package="broken.pt2"), RESULT, "more than one workload given"),
    (tool("diagnose", script="x.py", inputs="x.py"), RESULT, "does not apply to this script"),
    (tool("check_devices", inputs=[SPEC]), RESULT, "inputs are given without a package"),
    (tool("dump_kernel_io"), RESULT, "no package given"),
    (tool("compare_with_eager", package="broken.pt2"), RESULT, "nothing to compare with"),
    (tool("reduce"), RESULT, "no model given"),
    (tool("explain_error"), RESULT, "give the error either as"),
    (tool("inspect_package", package="broken.pt2", launch=1, kernel="k"), RESULT, "more than one question"),
    # paths
    (tool("diagnose", script="none.py"), RESULT, "no such script"),
    (tool("diagnose", script="."), RESULT, "script is a folder, not a file"),
    (tool("diagnose", script="a\0b"), RESULT, "a path holds a NUL byte"),
    (tool("diagnose", script=LONG), RESULT, "the path is too long"),
    (tool("diagnose", script="~nosuchuser/x.py"), RESULT, "no such home directory"),
    (tool("diagnose", script="x.py", cwd="none"), RESULT, "no such folder for `cwd`"),
    (tool("diagnose", script="x.py", python="x.py"), RESULT, "python is not executable"),
    (tool("diagnose", command=["no-such-program"]), RESULT, "no such program"),
    (tool("explain_error", log="pipe.log"), RESULT, "`log` is a pipe, not a file"),
    (tool("explain_error", log="/dev/zero"), RESULT, "`log` is a device, not a file"),
    (tool("diagnose", log="/proc/self/environ"), RESULT, "the log is a file under /proc or /sys"),
    (tool("inspect_package", package="broken.pt2"), RESULT, "broken.pt2"),
    # impossible values
    (tool("run_deterministic", script="x.py", env={"": "1"}), RESULT, "not a name of an environment"),
    (tool("run_deterministic", script="x.py", env={"A": "\0"}), RESULT, "NUL character"),
    (package(inputs=[{"shape": [-1]}]), RESULT, "inputs[0].shape[0]"),
    (package(inputs=[{**SPEC, "dtype": "flot32"}]), RESULT, "inputs[0]: unknown dtype"),
    (package(inputs=[{**SPEC, "low": 3, "high": 2}]), RESULT, "low is greater than high"),
    (package(inputs=[{**SPEC, "dtype": "int64", "high": 1e100}]), RESULT, "has no such values"),
    (package(inputs="[" * 100_000), RESULT, "is not JSON"),
    # jobs
    (tool("wait_job", job_id="../../etc"), RESULT, "not a job handle"),
    (tool("wait_job", job_id="job_00000000"), RESULT, "no such job"),
    (tool("stop_job", job_id="job_00000000"), RESULT, "no such job"),
    (tool("diagnose", log="job_00000000"), RESULT, "no such job"),
    # resources
    (resource("aoti-debug://jobs/job_00000000/output.log"), INVALID, "no such job"),
    (resource("aoti-debug://jobs/..%2f..%2fetc/passwd"), INVALID, ""),
    (resource("aoti-debug://jobs/job_00000000/x?offset=abc"), INVALID, "offset must be a number of bytes"),
    (resource("aoti-debug://nothing"), INVALID, ""),
    (("no/such/method", {}), UNKNOWN_METHOD, ""),
]


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaker]:
    """A server in a directory with a script, a pipe, and a broken package."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "x.py").write_text("")
    (folder / "broken.pt2").write_bytes(b"PK\3\4 cut")
    os.mkfifo(folder / "pipe.log")
    with serving(folder, project=folder) as speaker:
        yield speaker


@pytest.mark.parametrize(("asked", "code", "words"), WRONG)
def test_bad_inputs(speaker: Speaker, asked: tuple[str, dict[str, Any]], code: int, words: str) -> None:
    """The answer comes at once, with the code and what is wrong, in a few lines, and the server continues."""
    number = speaker.ask(*asked)
    while (heard := speaker.hear()).get("id") != number:
        pass
    if code == RESULT:
        assert heard["result"]["isError"], heard
        said = heard["result"]["content"][0]["text"]
    else:
        assert heard["error"]["code"] == code, heard
        said = heard["error"]["message"]
    assert words in said
    assert "Traceback" not in said and "defect" not in said and len(said) < 2_000
    assert speaker.ping() < 20


def test_many_requests_at_once(tmp_path: Path) -> None:
    """Each of many requests, sent without waiting, gets its own answer."""
    with serving(tmp_path) as speaker:
        asked = [speaker.ask(("ping", "tools/list", "resources/list")[n % 3]) for n in range(200)]
        answers = [speaker.hear() for _ in asked]
        assert sorted(answer["id"] for answer in answers) == asked
        assert all("result" in answer for answer in answers)


WRONG_SURROUNDINGS = {
    "a deleted directory": ("mkdir a; cd a; rmdir ../a; $A explain-error --text x", "current directory"),
    "too few files": ("ulimit -n 16; $A doctor", "16 (ulimit -n)"),
    "a circle of links": ("ln -s a b; ln -s b a; $A diagnose a", "leads nowhere, or in a circle: a"),
    "a folder": ("mkdir fold; $A diagnose fold", "a folder is not a workload: fold"),
    "no UTF-8": ("$A diagnose $'b\\xff.py'", "is not UTF-8: 'b\\udcff.py'"),
}


@pytest.mark.parametrize("name", WRONG_SURROUNDINGS)
def test_surroundings_that_do_not_work_are_named(name: str, tmp_path: Path) -> None:
    """One line says what is wrong, and it is not called a defect of this program."""
    script, said = WRONG_SURROUNDINGS[name]
    shell = ["bash", "-c", script.replace("$A", shlex.join(CLI))]
    ended = ran(shell, tmp_path)
    assert ended.returncode == Exit.PROBLEM and said in ended.stderr, ended.stderr
    assert "defect" not in ended.stderr and ended.stderr.count("\n") <= 3
