"""Results as text: verdicts of all categories, reports, checks, and nothing that harms a terminal."""

import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_server import brief
from mcp_server.diagnosis.diagnose import detect, diagnose
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.program_seen import Symptom
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import conclude, ranked
from mcp_server.logs.log import read_log
from mcp_server.model import FAILURES, PackageWorkload, ScriptWorkload, Verdict, Workload
from mcp_server.operations.arguments import validated
from mcp_server.operations.table import OPERATIONS, command_line
from mcp_server.package.mismatch import GivenTensor
from mcp_server.render import as_text
from mcp_server.runtime.context import Context
from mcp_server.tools.every_launch import WrongLaunch
from tests.conftest import Zoo, build
from tests.diagnosis.support import (
    DIFFERS,
    GOOD_IDS,
    called,
    capture,
    compared_with_eager,
    failing,
    package_case,
    phase,
    run,
    trial,
    worker_run,
)
from tests.render.samples import SAMPLES, VERDICT
from tests.served import served
from tests.server.clients import MOST_TOKENS, parse, tokens
from tests.zoo.names import nightly

GOLD = Path(__file__).with_name("gold.txt")  # `python -m tests.render.test_verdicts` writes it anew
VERBOSE = "verdict_verbose"
MIDDLE = re.compile(r"(?:^  [1-5]\d  .+\n)+", re.MULTILINE)  # not in the gold file


@pytest.fixture(scope="module")
def gold() -> dict[str, str]:
    """The texts by title."""
    parts = re.split(r"^=== (.+)\n", GOLD.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def printed(name: str) -> str:
    """What a sample prints. The verdict is also printed in full."""
    text = as_text(VERDICT, verbose=True) if name == VERBOSE else as_text(SAMPLES[name])
    return MIDDLE.sub("  …\n", text)


@pytest.mark.parametrize("name", [*SAMPLES, VERBOSE])
def test_layouts(name: str, gold: dict[str, str]) -> None:
    """Each layout prints its gold text."""
    assert printed(name) == gold[name]


def test_text_from_outside_is_data() -> None:
    """Control characters of a log are replaced, and its markup is not interpreted."""
    for text in (as_text(VERDICT), as_text(VERDICT, verbose=True), brief.text(VERDICT)):
        assert "\x1b" not in text
        assert "[red]" in text


REFERENCE = {
    "event": "compared_expected",
    "equal": False,
    "outputs": [{"output": 0, "elements": 2, "changed": 2}],
}
MOST_LINES, MOST_LETTERS = 15, 1200  # for a proven verdict in a terminal
BY_NAME = {operation.name: operation for operation in OPERATIONS}

TRACEBACK = 'Traceback (most recent call last):\n  File "/app/{}", line {}, in <module>\n    {}\n{}\n'
LOAD = ("serve.py", 3, 'model = torch._inductor.aoti_load_package("model.pt2")')
# Where the log of a category ends, if not at the model's call.
PLACES = {
    "toolchain": LOAD,
    "custom_op": LOAD,
    "compile_failure": ("build.py", 12, "program = torch.export.export(model, (x,))"),
    "environment": ("serve.py", 3, "x = x.cuda()"),
}
ERRORS = {
    "illegal_memory_access": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "arch_mismatch": "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "toolchain": "OSError: /tmp/abc/model.so: undefined symbol: aoti_torch_cpu_my_op",
    "compile_failure": "torch._dynamo.exc.UserError: Could not guard on data-dependent expression "
    "Eq(u0, 1) (unhinted: Eq(u0, 1)).",
    "out_of_memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. "
    "GPU 0 has a total of 79.00 GiB.",
    "environment": "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    "custom_op": "RuntimeError: Could not find schema for mylib::pool.",
}


def run_package(zoo: Zoo, folder: Path, name: str, inputs: str) -> Verdict:
    workload = PackageWorkload(package=zoo(name), inputs=zoo(name).with_name(f"{name}.{inputs}.pt"))
    return diagnosed(folder, workload)


def diagnosed(folder: Path, workload: Workload) -> Verdict:
    context = Context(directory=folder, python=Path(sys.executable))
    return served(diagnose, context, workload, budget_s=120)


def script(zoo: Zoo, folder: Path) -> Verdict:
    path = folder / "serve.py"
    path.write_text("import torch\n\nweights = torch.load('nowhere.pt')\n")
    return diagnosed(folder, ScriptWorkload(script=path, cwd=folder))


def cut_package(zoo: Zoo, folder: Path) -> Verdict:
    whole, path = zoo("ranker").read_bytes(), folder / "ranker.pt2"
    path.write_bytes(whole[: len(whole) // 2])
    return diagnosed(folder, PackageWorkload(package=path))


def concluded(case: DiagnosisState, folder: Path) -> Verdict:
    return conclude(detect(case), case, Context(folder, Path(sys.executable)))


def log(category: str) -> Callable[[Zoo, Path], Verdict]:
    def of_log(_zoo: Zoo, folder: Path) -> Verdict:
        case = DiagnosisState(None)
        place = PLACES.get(category, ("serve.py", 9, "out = model(x)"))
        text = TRACEBACK.format(*place, ERRORS[category])
        case.log, case.log_source = read_log(text.splitlines()), "crash.log"
        return concluded(case, folder)

    return of_log


def mismatch(given: GivenTensor) -> Callable[[Zoo, Path], Verdict]:
    """A scenario: a call fails, and passes once the input is changed to what was compiled."""

    def of_input(zoo: Zoo, folder: Path) -> Verdict:
        case = failing(package_case(zoo("ranker"), given))
        for tried in ranked(detect(case), case)[0].interventions:
            case.trials[tried.key] = trial(tried, Effect.GONE)
        return concluded(case, folder)

    return of_input


def constants(zoo: Zoo, folder: Path) -> Verdict:
    case = failing(package_case(zoo("ranker")))
    given = {"table.weight": {"dtype": "float16", "device": "cpu", "shape": [32, 16], "stride": [16, 1]}}
    case.capture = capture(updates=[phase(1, load=1, how="load_constants", constants=given)])
    return concluded(case, folder)


def concurrency(_zoo: Zoo, folder: Path) -> Verdict:
    """Two threads use one single-threaded runner at once."""
    load = phase(0, loader="aoti_load_package", package="m.pt2", options={"run_single_threaded": True})
    one = phase(1, load=1, thread=1, thread_name="one", seconds=1.0)
    two = phase(2, load=1, thread=2, thread_name="two", seconds=1.0) | {"t": 1.5}
    case = failing(DiagnosisState(None))
    case.capture = capture(loads=[load], calls=[one, two])
    return concluded(case, folder)


def hang(zoo: Zoo, folder: Path) -> Verdict:
    case = package_case(zoo("ranker"), GOOD_IDS)
    case.runs["plain"] = run("plain", "", ending="timeout")
    return concluded(case, folder)


def wrong_output(zoo: Zoo, folder: Path) -> Verdict:
    """A script found wrong numbers, and launch 1 of its package diverges from eager mode."""
    case = package_case(zoo("logarithm"))
    case.symptom = Symptom(program=Path("program.pt2"))
    case.runs["plain"] = case.runs["script"] = run("plain", "", called(), REFERENCE)
    case.interpreted = worker_run(DIFFERS)
    where = {"launch": 1, "kernel": "cpp_fused_log_mul_sigmoid_0", "argument": "buf1"}
    differs = "mul is 0.5 instead of 0.25 at [0, 3] (8 of 512 elements), compared with eager mode (in buf1)"
    summary = f"launch 1: {differs}"
    wrong = WrongLaunch.model_validate({**where, "difference": {}, "summary": summary})
    case.with_eager = compared_with_eager("error", wrong)
    return concluded(case, folder)


def unexplained(zoo: Zoo, folder: Path) -> Verdict:
    """The call raises an error that no check explains."""
    case = failing(package_case(zoo("ranker"), GOOD_IDS), "RuntimeError: something odd")
    return concluded(case, folder)


SCENARIOS: dict[str, Callable[[Zoo, Path], Verdict]] = {
    "index_out_of_bounds": lambda zoo, folder: run_package(zoo, folder, "ranker", "bad-index"),
    "nan_or_inf": lambda zoo, folder: run_package(zoo, folder, "logarithm", "bad-nan"),
    "input_mismatch": lambda zoo, folder: run_package(zoo, folder, "ranker", "bad-dtype"),
    "device_mismatch": mismatch(replace(GOOD_IDS, device="cuda:0")),
    "shape_out_of_range": mismatch(replace(GOOD_IDS, shape=(65, 6))),
    "invalid_package": cut_package,
    "script_error": script,
    "constants": constants,
    "concurrency": concurrency,
    "hang": hang,
    "unexplained": unexplained,
    "wrong_output": wrong_output,
    **{category: log(category) for category in ERRORS},
    "healthy": lambda zoo, folder: run_package(zoo, folder, "ranker", "inputs"),
    "without inputs": lambda zoo, folder: diagnosed(folder, PackageWorkload(package=zoo("ranker"))),
}


NIGHTLY = "input_mismatch"


def told(verdict: Verdict, zoo: Zoo, folder: Path) -> str:
    """What a scenario prints, without what differs between machines."""
    text = as_text(verdict)
    for path in (folder, zoo("ranker").parent, zoo("logarithm").parent, Path(__file__).parents[2]):
        text = text.replace(f"{path}/", "")
    text = re.sub(r"\d+\.\d s\b", "1.0 s", text)
    text = re.sub(r"\nCost .+", "", text)  # the samples have it
    return re.sub(r"(?:/\S*/)(?=proof\.py|instrumented)", "", text)


@pytest.mark.parametrize("name", [*(each for each in SCENARIOS if each != NIGHTLY), *nightly(NIGHTLY)])
def test_a_verdict_reads_as_its_gold(name: str, gold: dict[str, str], zoo: Zoo, tmp_path: Path) -> None:
    """Each text equals the gold file. A proven verdict has at most 15 lines and 1,200 characters.

    An agent gets at most 1,000 tokens. Each next step is valid and can be typed, and our commands parse.
    """
    verdict = SCENARIOS[name](zoo, tmp_path)
    text = told(verdict, zoo, tmp_path)
    assert f"{text}\n" == gold[name]
    if "(proven)" in text:
        assert text.count("\n") <= MOST_LINES and len(text) <= MOST_LETTERS
    assert tokens(brief.main_fields(verdict)) <= MOST_TOKENS
    assert verdict.outcome != "inconclusive" or verdict.next_steps
    for step in verdict.next_steps:
        validated(BY_NAME[step.tool].arguments, step.arguments)
        parse(command_line(step))
    for item in verdict.evidence:
        if item.command.startswith("aoti-debug "):
            parse(item.command)


def test_every_category_is_read() -> None:
    """Every category has a scenario, and no label is longer than its column."""
    assert set(FAILURES) <= SCENARIOS.keys()
    assert max(map(len, ("Confirmed", "Then fix"))) < brief.LABEL


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as there:
        written = [f"=== {name}\n{printed(name)}" for name in (*SAMPLES, VERBOSE)]
        for scenario in SCENARIOS:
            place = Path(there) / scenario.replace(" ", "-")
            place.mkdir()
            verdict = SCENARIOS[scenario](build, place)
            written.append(f"=== {scenario}\n{told(verdict, build, place)}\n")
        GOLD.write_text("".join(written))
