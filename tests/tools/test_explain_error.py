"""explain_error: from a text to its family, its meaning and the next call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.errors import ProblemError
from mcp_server.logs.families import FAMILIES
from mcp_server.logs.log import read_log
from mcp_server.operations.table import OPERATIONS
from mcp_server.runtime.failure import read_users_log
from mcp_server.tools.explain_error import program_of
from tests.conftest import ZooPackage, torch_environment
from tests.recorded import RECORDINGS
from tests.support.tools import tool


@pytest.mark.parametrize(
    ("lines", "arguments"),
    [
        (
            "./run.sh: line 34:  1930 Aborted    (core dumped) ./aoti_run m.so -i 'Once upon' > out",
            {"command": ["./aoti_run", "m.so", "-i", "Once upon"]},
        ),
        (
            "/w/5.sh: line 86:  2618 Segmentation fault (core dumped) python generate.py --dso ${DIR}/m.so",
            {"script": "generate.py"},
        ),
        (
            "  what():  Error in dlopen: /tmp/model.so: undefined symbol: _ZN3c107WarningC1ESt7variant\n"
            "frame #0: c10::Error::Error() + 0x6c (0x7f43696d0a0c in /t/lib/libc10.so)\n"
            "frame #3: <unknown function> + 0xa2c4 (0x55cb652cd2c4 in ./aoti_example)",
            {"command": ["./aoti_example"]},
        ),
        ("frame #4: <unknown function> + 0x1a26bf (0x55c009ea06bf in /opt/conda/bin/python)", {}),
    ],
    ids=["of a shell", "of a script", "of a stack", "of Python"],
)
def test_the_program_that_a_log_names(lines: str, arguments: dict[str, object]) -> None:
    """A shell that saw a program end names it with its arguments, a C++ stack names it alone."""
    assert program_of(read_log(lines.splitlines())) == arguments


@pytest.mark.parametrize("text", ["my model returns nan", "the answers are wrong"])
def test_an_unknown_text_is_not_called_silence(tmp_path: Path, text: str) -> None:
    """A text that somebody quotes is not said to hold no error, and nobody is sent to look for a hang."""
    found = tool("explain_error", tmp_path, text=text)
    assert found.summary == "This text matches no known error."
    assert found.next.tool == "run_deterministic" and found.lines == [f"1: {text}"]
    assert any("pass the whole log" in note for note in found.notes)


def test_the_closest_family_is_named(tmp_path: Path) -> None:
    """A text with a typing error leads to the family that it resembles, as a note and not as a finding."""
    found = tool("explain_error", tmp_path, text="index out of bound 0 <= tmp27 < 32L")
    assert not found.known and found.category is None
    assert found.notes[0].startswith("closest known error: cpu_index_assert")


def test_open_launch_without_error(tmp_path: Path) -> None:
    """Without an error text the launch that did not end is named."""
    found = tool("explain_error", tmp_path, text="[ before_launch: a_0 ]")
    assert (found.last_launch, found.next.tool) == ("a_0", "locate_fault")


@pytest.mark.slow
def test_assertion_is_traced_in_its_package(tmp_path: Path, zoo: ZooPackage) -> None:
    """With the package an index assertion leads to the launch, the table, the input and the model line."""
    found = tool(
        "explain_error",
        tmp_path,
        text="RuntimeError: index out of bounds: 0 <= tmp2 < 32L",
        package=zoo("ranker"),
    )
    (trace,) = found.trace
    assert trace["index_from"] == ["input 0 (args[0])"]
    assert trace["model"][0].code == "rows = self.table(ids)"
    assert found.next.arguments["package"] == str(zoo("ranker"))


def recorded(where: Path, name: str) -> Path:
    """A recorded package by its library: beside it lie its wrapper, and its kernels on the CPU."""
    for folder, kind in (("wrappers", "wrapper"), ("kernels", "kernel")):
        source = RECORDINGS / folder / f"{name}.cpp"
        if source.exists():
            (where / f"a.{kind}.cpp").write_bytes(source.read_bytes())
    (where / "a.wrapper.so").touch()
    return where / "a.wrapper.so"


@pytest.mark.slow
def test_several_places_are_shown(tmp_path: Path, zoo: ZooPackage) -> None:
    """A check that stands twice in a kernel: both are told, with what tells them apart; a line picks one."""
    text = "index out of bounds: 0 <= tmp10 < 12L"
    both = tool("explain_error", tmp_path, text=text, package=zoo("scatter"))
    assert len({fact["location"] for fact in both.trace}) == len(both.trace) == 2
    assert both.notes == ["2 places fit; the generated file and line, or a trace, tell them apart"]
    place = both.trace[1]["location"].replace("kernel.cpp", "/c/x.kernel.cpp")
    raised = f"{text}\nException raised from {both.trace[1]['kernel']} at {place} (most recent call first):"
    one = tool("explain_error", tmp_path, text=raised, package=zoo("scatter"))
    assert (one.trace, one.notes) == ([both.trace[1]], [])


def test_the_text_of_a_device(tmp_path: Path) -> None:
    """A Triton assertion leads to the launch, the input that holds the index, and how far negatives go."""
    package = recorded(tmp_path, "scatter.torch-2.11-cuda")
    text = (
        "/c/xy.py:27: unknown: block: [0,0,0], thread: [7,0,0] Assertion "
        "`index out of bounds: 0 <= tl.broadcast_to(tmp4, [XBLOCK]) < 12` failed."
    )
    found = tool("explain_error", tmp_path, text=text, package=package)
    (fact,) = found.trace
    assert fact["kernel"] == "triton_poi_fused_index_put_zeros_2"
    assert fact["index_from"] == ["input 1 (args[1])"]
    assert fact["fix"].after == "assert -12 <= int(args[1].min()) and int(args[1].max()) <= 11"


def explanations(tmp_path: Path) -> list[Any]:
    texts = [family.example for family in FAMILIES]
    logs = sorted(RECORDINGS.glob("*.txt"))
    return [tool("explain_error", tmp_path, text=text) for text in texts] + [
        tool("explain_error", tmp_path, log=log) for log in logs
    ]


def test_next_calls_validate(tmp_path: Path) -> None:
    """Every next call to a declared tool validates against that tool's arguments."""
    models = {operation.name: operation.arguments for operation in OPERATIONS}
    called = {found.next.tool for found in explanations(tmp_path)}
    for found in explanations(tmp_path):
        if found.next.tool in models:
            models[found.next.tool].model_validate(found.next.arguments)
    assert called >= {"check_devices", "diagnose"}


@pytest.mark.slow
def test_output_of_a_real_crash(tmp_path: Path, zoo: ZooPackage) -> None:
    """What this machine's torch prints for a bad index is explained down to the kernel and its launch."""
    code = (
        "import sys, torch; "
        "run = torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], 'model', False, 1, -1).run; "
        "run([torch.full((4, 6), 99)])"
    )
    argv = [sys.executable, "-c", code, str(zoo("ranker"))]
    done = subprocess.run(argv, env=torch_environment(), capture_output=True, text=True, check=False)
    found = tool("explain_error", tmp_path, text=done.stdout + done.stderr, package=zoo("ranker"))
    assert done.returncode != 0
    assert (found.family, found.kernel) == ("cpu_index_assert", "cpp_fused_embedding_0")
    assert [trace["index_from"] for trace in found.trace] == [["input 0 (args[0])"]]


def test_a_log_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """No such file, and a directory."""
    for path in (tmp_path / "none.log", tmp_path):
        with pytest.raises(ProblemError):
            anyio.run(read_users_log, path)
