"""What distinguishes a fault from a program that works but looks faulty, and the reverse."""

from pathlib import Path

import pytest

from mcp_server.diagnosis.causes.log_text import action, named
from mcp_server.diagnosis.components import DRAWS
from mcp_server.diagnosis.diagnose import detect
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import REFUSALS
from mcp_server.diagnosis.verdict import confidence
from mcp_server.logs.log import read_log
from mcp_server.model import Artifact, Cost, ScriptWorkload
from mcp_server.package.exported import ExportedFacts
from mcp_server.tools.kernel_io import FirstBad, KernelIO
from mcp_server.tools.requests import failing_phase
from mcp_server.worker.report import OddElement
from tests.conftest import Zoo
from tests.diagnosis.support import by, called, capture, failing, index_text, package_case, phase, run

ARTIFACT = Artifact(uri="u", path=Path("p"), bytes=0, what="log")


def masked(package: Path, **output: int) -> DiagnosisState:
    """Make a call whose first value that is not finite is minus infinity, from its first launch."""
    case = package_case(package)
    case.runs["plain"] = run("plain", "", called(**output))
    made = {"what": "non_finite", "kind": "kernel", "name": "k", "argument": "b1", "launch": 0, "kernel": "k"}
    value = {"element": OddElement(value="-inf"), "perhaps_intended": True, "summary": "it"}
    first = FirstBad.model_validate({**made, **value})
    case.kernel_io = KernelIO(returned=True, first_bad=first, log=ARTIFACT, cost=Cost())
    return case


def test_minus_infinity_in_the_outputs_is_a_mask_unless_something_complains(zoo: Zoo) -> None:
    """Alone it is harmless. With NaN in the outputs, or if the program fails because of it, it is a fault."""
    alone, with_nan, refused = (masked(zoo("logarithm"), inf=9, nan=n) for n in (0, 1, 0))
    refused.runs["script"] = run("script", "ValueError: not finite")
    for case, fault in ((alone, False), (with_nan, True), (refused, True)):
        (found,) = by("nan_or_inf.detect_bad_values", case)
        assert (found.harmful, found.weak) == (fault, not fault)


@pytest.mark.parametrize(
    ("parent", "ended_well", "blamed"),
    [(1, True, "CapturedCall"), (1, False, "CapturedLoad"), (7, True, "CapturedLoad")],
    ids=["tried in a child", "ended badly", "of another program"],
)
def test_a_load_that_failed_in_a_child_is_not_blamed_where_the_program_went_on(
    parent: int, ended_well: bool, blamed: str
) -> None:
    """A program that tries a package in a child process expects that this may fail."""
    processes = [{"pid": pid, "parent": of, "argv": [], "python": ""} for pid, of in ((1, 0), (2, parent))]
    probe = {**phase(3, loader="x", package="half.pt2", outcome="failed"), "pid": 2}
    call = phase(5, load=1, thread=1, file="inputs.pt")
    seen = capture(processes=processes, loads=[probe], calls=[call])
    assert type(failing_phase(seen, ended_well=ended_well)).__name__ == blamed


def misnamed(text: str) -> DiagnosisState:
    """Make an update that the package refused because of names."""
    case = DiagnosisState(ScriptWorkload(script=Path("x.py")))
    given = {name: {"dtype": "float32"} for name in ("student.a", "student.b")}
    record = phase(
        1,
        load=1,
        how="load_constants",
        outcome="failed",
        compiled=["a", "b"],
        constants=given,
        error={"type": "RuntimeError", "text": text},
    )
    case.capture = capture(updates=[record])
    return case


def test_a_refused_update_names_what_differs(zoo: Zoo) -> None:
    """The name in the text is the party, and the fix removes the prefix from all names."""
    case = failing(misnamed("Constant not found: student.b"))
    case.package = package_case(zoo("ranker")).package
    (found,) = by("constants.detect", case)
    assert found.guilty.name == "student.b" and found.steps == {"capture"}
    assert found.fix is not None and "removeprefix('student.')" in (found.fix.after or "")


@pytest.mark.parametrize(
    ("given", "compiled", "key", "party"),
    [("net.{}", "{}", "name.removeprefix('net.')", "net.c"), ("{}", "model.{}", "'model.' + name", "c")],
)
def test_a_common_prefix_of_names_is_named(zoo: Zoo, given: str, compiled: str, key: str, party: str) -> None:
    """Six names have a prefix too much or too few: the fix renames all of them."""
    names = "abcdef"
    case = failing(misnamed(f"Constant not found: {party}"))
    case.package = package_case(zoo("ranker")).package
    (update,) = case.captured.updates
    constants_given = {given.format(n): {"dtype": "float32"} for n in names}
    record = {"compiled": [compiled.format(n) for n in names], "constants": constants_given}
    case.capture = capture(updates=[{**update.model_dump(mode="json"), **record}])
    (found,) = by("constants.detect", case)
    assert found.fix is not None and found.fix.after == f"{{{key}: value for name, value in weights.items()}}"
    assert all(given.format(n) in found.summary for n in names) and found.refusal in REFUSALS


@pytest.mark.parametrize(
    ("exported", "keeps", "words"),
    [
        (ExportedFacts(state=("a", "b", "c"), idle=("c",)), False, "leave out c, which"),
        (ExportedFacts(state=("a", "b", "c")), False, "c is not in the package, since"),
        (ExportedFacts(state=("a", "b", "c")), True, "give exactly"),
        (None, False, "unless the model does not use them"),
        (None, True, "leave out c, which"),
    ],
)
def test_only_a_name_in_use_is_folded(exported: ExportedFacts | None, keeps: bool, words: str) -> None:
    """A buffer that the graph does not read is left out; the option is not advised twice."""
    case = misnamed("Constant not found: c")
    (update,) = case.captured.updates
    given = {name: {"dtype": "int64", "shape": []} for name in "abc"}
    made = {"how": "x", "package": "p", "configs": {"always_keep_tensor_constants": keeps}}
    updates = [{**update.model_dump(mode="json"), "constants": given}]
    load = phase(1, loader="x", package="p")
    case.capture = capture(loads=[load], compiles=[phase(1, **made)], updates=updates)
    case.exported = exported
    (found,) = by("constants.detect", case)
    assert found.fix is not None and words in found.fix.text


@pytest.mark.parametrize(("failed", "places", "count"), [(True, [0], 1), (False, [0], 0), (True, [], 0)])
def test_an_input_that_another_thread_wrote(zoo: Zoo, failed: bool, places: list[int], count: int) -> None:
    """A write during the call explains a failure. Without a failure, it is harmless."""
    case = package_case(zoo("ranker"))
    case.runs["script"] = run("script", "AssertionError: Tensor-likes are not close!" if failed else "")
    told = {"storage": "input", "act": "written", "interval": "call", "call": 1}
    memory = [phase(2, **told, input=place) for place in places]
    case.capture = capture(calls=[phase(1, load=1, thread=1, file="inputs.pt")], memory=memory)
    found = by("shared_memory.detect_memory_log", case)
    assert [h.guilty.input_index for h in found] == [0] * count
    assert all(h.category == "concurrency" for h in found)


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("Error in dlopen: /t/m.so: undefined symbol: aoti_torch_norm", "toolchain", "aoti_torch_norm"),
        ("RuntimeError: index out of bounds: 0 <= tmp27 < 32L", "input", ""),
        ("expected inputs vector size to be 2, but got 1", "call", "the call's inputs"),
        ("RuntimeError: Error generating temporary directory: No such file", "environment", "TMPDIR"),
        ("Specified device cuda:1 does not match device of data cuda:0", "call", "device cuda:1"),
        ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "toolchain", "ptxas"),
        ("a.h:8:10: fatal error: 'omp.h' file not found", "toolchain", "omp.h"),
        ("a.cpp:(.text+0xc5): undefined reference to `WinMain'", "toolchain", "WinMain"),
        ("Could not guard on data-dependent expression Eq(256*u0, 256).", "script", "Eq(256*u0, 256)"),
        (
            "OMP: Error #15: Initializing libomp.so, but found libiomp5.so already initialized.",
            "toolchain",
            "libomp.so",
        ),
        ("Expected input at *args[0].shape[0] to be <= 128, but got 200", "input", "*args[0].shape[0]"),
    ],
)
def test_a_text_names_its_party_and_what_to_do(text: str, kind: str, name: str) -> None:
    """The text names the party, or nobody, and the fix does not repeat the cause."""
    root = read_log([text]).root
    assert root is not None
    who = named(root.candidates[0], root)
    assert (who.kind, who.name) == (kind, name)
    assert action(root, root.candidates[0]) not in ("", root.family.meaning)


@pytest.mark.parametrize(
    ("symbol", "words"),
    [("_ZTIN5torch8autograd4NodeE", "was probably built for another torch"), ("_Z6ledger", "defines _Z")],
)
def test_whose_symbol_is_missing(symbol: str, words: str) -> None:
    """A symbol of torch needs a build with this torch, any other symbol the library that has it."""
    root = read_log([f"OSError: /opt/lib/libplugin.so: undefined symbol: {symbol}"]).root
    assert root is not None
    shown = action(root, "toolchain")
    assert words in shown and "/opt/lib/libplugin.so" in shown


def test_kernels_that_draw_random_numbers_are_told_by_their_operators() -> None:
    """Operator names are complete between the underscores of a kernel's name."""
    drawing = ("cpp_fused_native_dropout_0", "triton_poi_fused_bernoulli_1", "aoti_torch_cpu_randint_low_out")
    others = ("cpp_fused_native_layer_norm_0", "cpp_fused_linalg_vector_norm_normalize_2")
    assert [name for name in (*drawing, *others) if DRAWS.search(name)] == list(drawing)


STACKS = """Timeout (0:01:00)!
Thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/app/serve.py", line 20 in serve

Thread 0x3 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/_inductor/subproc_pool.py", line 61 in _recv_msg

Current thread 0x2 (most recent call first):
  File "{file}", line 41 in {function}
  File "/app/serve.py", line 52 in main
"""


@pytest.mark.parametrize(
    ("file", "function", "sure"),
    [
        ("/usr/lib/python3.11/queue.py", "join", "likely"),
        ("/usr/lib/python3.11/subprocess.py", "_try_wait", "likely"),
        ("/app/serve.py", "read_slowly", "possible"),
        ("/usr/lib/python3.11/ssl.py", "read", "possible"),
    ],
)
def test_threads_that_all_wait_for_each_other_hang(file: str, function: str, sure: str) -> None:
    """All threads wait: a hang. If one computes or reads, the program may be slow, and its line is named."""
    case = DiagnosisState(ScriptWorkload(script=Path("serve.py")))
    case.capture = capture().model_copy(update={"quiet_s": 60.0})
    case.runs["script"] = run("script", STACKS.format(file=file, function=function), ending="timeout")
    (found,) = by("hang.detect_no_end", case)
    assert (found.guilty.name, confidence(found, case)) == ("/app/serve.py:20", sure)


def test_a_compile_that_waits_is_reported() -> None:
    """Nothing is claimed for a compile that used no processor time when it was cut."""
    case = DiagnosisState(ScriptWorkload(script=Path("serve.py")))
    case.capture = capture(compiles=[phase(1, how="aoti_compile_and_package", outcome="unfinished")])
    case.runs["script"] = run("script", "", ending="timeout")
    (shown,) = detect(case)
    assert shown.weak and shown.category == "hang" and "compiling" in shown.summary


def test_a_program_that_worked_until_shortly_before_its_limit_may_be_slow() -> None:
    """A wait of a few seconds is no hang, whatever is awaited. The limit and the line are named."""
    case = DiagnosisState(ScriptWorkload(script=Path("serve.py")))
    case.capture = capture().model_copy(update={"quiet_s": 3.0})
    waits = STACKS.format(file="/usr/lib/python3.11/subprocess.py", function="communicate")
    case.runs["script"] = run("script", waits, ending="timeout")
    (suspect,) = detect(case)
    assert suspect.weak and "not end within 1 s: it was at /app/serve.py:20, 3 s after" in suspect.summary


@pytest.mark.parametrize(("ended", "harmful"), [("", False), ("RuntimeError: no answer", True)])
def test_a_refused_call_that_the_program_handled_is_no_fault(zoo: Zoo, ended: str, harmful: bool) -> None:
    """The error's text stays in the log. It counts only if the program failed because of it."""
    case = failing(package_case(zoo("ranker")), index_text(zoo("ranker")))
    case.workload = ScriptWorkload(script=Path("a.py"))
    case.capture = capture(calls=[phase(1, load=1, thread=1, file="inputs.pt", outcome="failed")])
    case.runs["script"] = run("script", ended)
    found = detect(case)
    assert found and {hypothesis.harmful for hypothesis in found} == {harmful}
