"""The commands and edits of a verdict: a command for each evidence, lines for the fix."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.interventions import input as inputs
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Options
from mcp_server.diagnosis.kept_files import change_code
from mcp_server.diagnosis.next_steps import call_arguments, command_for
from mcp_server.diagnosis.origin.lines import idiom_of
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.words import at_call_site, callers_names
from mcp_server.logs.log import read_log
from mcp_server.model import Fix, PackageWorkload
from mcp_server.worker.protocol import Change
from tests.conftest import ROOT, Zoo
from tests.diagnosis.support import capture, intervention, package_case, trial, worker_run
from tests.server.clients import parse

SOURCES = ROOT / "mcp_server" / "diagnosis"
STEP = r'(?:\bstep=|\bseen\(\s*)"(\w+)"'
STEPS = sorted({s for f in SOURCES.rglob("*.py") for s in re.findall(STEP, f.read_text())})
# steps that are repeated by a diagnosis, that bring their own command, or read files that no command shows
ASKED_AGAIN = ("interpret", "watch_operators")
OTHERWISE = {
    "bisect",
    "capture",
    "compare_with_eager",
    "fill_host_memory",
    "look_at_process",
    "run_alone",
    *ASKED_AGAIN,
}  # have tests of their own
WITHOUT = {"note", "intervention", "read_exported", "read_source"}


def full_case(zoo: Zoo) -> DiagnosisState:
    """Make a case with every kind of evidence."""
    case = package_case(zoo("ranker"))
    case.log, case.log_source = read_log(["Segmentation fault"]), "a log.txt"
    case.interpreted = case.operators = case.repeated = worker_run()
    case.trials["key"] = replace(trial(intervention(), Effect.GONE), command="aoti-debug try-fix first")
    case.capture = capture()
    return case


@pytest.mark.parametrize("step", [s for s in STEPS if s not in WITHOUT | OTHERWISE])
def test_evidence_brings_a_command_of_ours(zoo: Zoo, step: str) -> None:
    """The command line accepts the command with its options and arguments."""
    parse(command_for(step, full_case(zoo)))


@pytest.mark.parametrize("step", STEPS)
def test_no_command_is_made_up(step: str) -> None:
    """Without package, inputs, run and log, there is no command."""
    assert command_for(step, DiagnosisState(None)) == ""


def test_a_command_brings_what_the_call_needs(zoo: Zoo) -> None:
    """Model name, device, imports and variables are in the command, and in the next call."""
    case = full_case(zoo)
    assert case.call is not None and isinstance(case.workload, PackageWorkload)
    request: Any = {"model_name": "small", "device_index": 1, "extra_imports": ["o.py"], "inputs": "in.pt"}
    case.call = replace(case.call, request=request)
    case.workload = case.workload.model_copy(update={"env": {"THREADS": "1"}})
    command = command_for("run", case)
    parse(command)
    for wanted in ("--model-name small", "--device-index 1", "--extra-imports o.py", "--env THREADS=1"):
        assert wanted in command
    assert shlex.split(command_for("interpret", case))[:2] == ["env", "THREADS=1"]
    assert call_arguments(case)["model_name"] == "small" and call_arguments(case)["env"] == case.workload.env


ZERO = "log(0) is -inf, and 0 * -inf is nan"
DIVISION = "divisor = p.sum(-1)\ny = p / torch.where(divisor == 0, 1, divisor)"


@pytest.mark.parametrize(
    ("line", "op", "explanation", "after"),
    [
        ("h = -(p * p.log()).sum(-1)", "log", ZERO, "h = -torch.xlogy(p, p).sum(-1)"),
        ("h = torch.log(q) * p", "log", ZERO, "h = torch.xlogy(p, q)"),
        ("h = torch.log(q) * p", "log", "log(0) is -inf, and -inf * 0 is nan", "h = torch.xlogy(p, q)"),
        ("h = torch.log(q) * p", "log", "-inf * 0.5 is -inf", None),
        ("h = p * torch.log2(p)", "log2", ZERO, "h = torch.xlogy(p, p) / math.log(2)"),
        ("h = p * p.log()", "log", "log(0) is -inf", "h = torch.xlogy(p, p)"),
        ("h = p * q.log()", "log", "log(0) is -inf", None),
        ("h = p * p.log() + q * q.log()", "log", ZERO, None),
        ("y = torch.log(torch.softmax(x, -1))", "log", "log(0) is -inf", "y = torch.log_softmax(x, -1)"),
        ("y = x.softmax(-1).log()", "log", "log(0) is -inf", "y = x.log_softmax(-1)"),
        ("y = p / p.sum(-1)", "div", "0 / 0 is nan", DIVISION),
        ("y = p / n", "div", "0 / 0 is nan", None),
        ("y = (", "log", ZERO, None),
    ],
)
def test_the_idiom_of_a_line(line: str, op: str, explanation: str, after: str | None) -> None:
    """An idiom is found if one expression of the line has one. A factor of 0 is needed for xlogy."""
    found = idiom_of(line, op, explanation)
    assert (found.after if found is not None else None) == after


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("out = run(amount, features)", "out = run(amount.to(torch.float32), features)"),
        ("print(run(a + b, features))", "print(run((a + b).to(torch.float32), features))"),
        ("out = run(*batch)", None),
        ("out = f(a, run(b, c))", None),
        ("out = run(", None),
    ],
)
def test_an_argument_is_changed_where_the_call_is_made(line: str, after: str | None) -> None:
    """The fix changes the only call with as many arguments. Otherwise it stays the same."""
    fix = Fix(text="convert it", before="args[0]", after="args[0].to(torch.float32)")
    expected = fix.model_copy(update={"before": line, "after": after}) if after else fix
    assert at_call_site(fix, line, 2) == expected
    both = Fix(text="", before="args[0]\nargs[1]", after="args[0] = args[0].half()\nargs[1] = args[1].half()")
    assert at_call_site(both, "run(a, b)", 2).after == "run(a.half(), b.half())"
    assigned = fix.model_copy(update={"after": "args[0] = args[0].to(torch.float32)"})
    assert at_call_site(assigned, line, 2).after == (after or assigned.after)
    assert callers_names(line, 2).get("args[1]") == ("features" if after else None)


IDS = inputs.Leaf(0, "args[0]")


@pytest.mark.parametrize(
    ("tried", "code"),
    [
        (inputs.keep_in_range(IDS, 0, 31), "args[0] = args[0].clamp(0, 31)"),
        (inputs.replace_element(IDS, (2, 0), 1), "args[0][2, 0] = 1"),
        (inputs.whole(IDS, "cast", "float32"), "args[0] = args[0].to(torch.float32)"),
        (inputs.exchange((1, 0), ("args[0]", "args[1]")), "args[0], args[1] = args[1], args[0]"),
        (Intervention("k", Kind.KERNEL, "", options=Options(package=Path("b.pt2"))), "package = 'b.pt2'"),
        (Intervention("k", Kind.ENVIRONMENT, "", options=Options(env={"A": "1"})), ""),
        (Intervention("k", Kind.INPUT, "", (Change("align", 0),), after_code="args[0]: own-memory"), ""),
        (Intervention("k", Kind.INPUT, "", (Change("align", 0),), after_code="import os"), ""),
        (Intervention("k", Kind.INPUT, "", (Change("align", 0),), after_code="args[0] = load(x)"), ""),
    ],
)
def test_a_change_is_code_or_there_is_no_proof(tried: Intervention, code: str) -> None:
    """The code uses only the call's arguments and torch. A spelling of `try-fix` is not Python."""
    assert change_code(tried) == code
