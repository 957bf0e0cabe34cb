"""`run` and `replay`: call a package on inputs, or again as captured, and compare with what is expected."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import Any, Callable, ContextManager, Iterator, Sequence

import torch

from . import events
from .compare import Limits, compare_all, compare_calls, with_distances
from .encode import CALL_FORMAT, pack_leaves
from .inputs import Inputs, apply, arrange, flatten, load_file, read, reporting_changes
from .loading import load_captured, update_package
from .process import limited, on_stack, synchronize
from .protocol import ReplayRequest, RunRequest, Step
from .report import Refused, Report
from .tensors import layout, leaf_facts, only_tensors

EXPECTATION = "a file of torch.save with one tensor for each output"
CHECK_LIMIT_S = 120.0  # seconds for one run of the check command
TEXT_LIMIT = 2000  # bytes kept of the command's output


def operate(request: ReplayRequest, report: Report, loaded: Callable[[], None] = lambda: None) -> None:
    """Load the package, and call it (`run`), or do each step of a captured program (`replay`).

    `loaded` is called after the load. Each call reads its inputs again, since a call may mutate them. Outputs
    are compared with the tensors of the program's check, unless the user gave others or a command.
    """
    expected = expectation(request.get("expect"))  # refuses a bad file before the workload runs
    captured = "steps" in request
    loader = load_captured(request, report, weights=not captured)
    loaded()
    calls = request.get("calls", 1) if request.get("inputs") is not None else 0
    steps = request["steps"] if captured else [Step(do="call")] * calls
    alive: list[Any] = []
    watch = watching(request.get("operators"), report)
    result: Any = None
    for index, step in enumerate(steps):
        if step["do"] == "constants":
            alive.append(update_package(loader, step, report, request))
            continue
        # The request changes only the captured program's last call.
        changed = request if not captured or index == len(steps) - 1 else ReplayRequest()
        report.phase("reading_inputs", step.get("file", ""))
        flat = flatten(inputs_of(step, request), loader.get_call_spec()[0])
        flat = apply(flat, changed.get("changes", ()))
        if "keep_inputs" in changed:
            kept = {"format": CALL_FORMAT, "leaves": pack_leaves(flat, sys.maxsize), "spec": ""}
            torch.save(kept, changed["keep_inputs"])
        report.event(events.Given(leaf_facts(flat, layout)))
        made = partial(call, partial(loader.run, flat), index, report)
        told = reporting_changes(changed.get("tell_changes", {}), flat, report)
        with as_captured(step), watch, told:
            result = on_stack(changed.get("stack_bytes") or step.get("stack"), made)
    if result is None:
        return
    if request.get("actual") and expected is None and not request.get("check"):
        repeat_check(request["actual"], only_tensors(result), report)
    else:
        judge(request, expected, result, report)


def repeat_check(kept: str, outputs: list[torch.Tensor], report: Report) -> None:
    """Compare with both sides of the program's own check: what it expected, and what it had got."""
    wanted, before = (expectation(kept, side) or Expected() for side in ("expected", "actual"))
    report.event(as_expected(wanted.among(outputs), outputs, wanted.limits, given=False))
    report.event(compare_all(before.among(outputs), outputs))


def inputs_of(step: Step, request: RunRequest) -> Inputs:
    """The inputs of the captured call, or those of the request."""
    file = step.get("file")
    return arrange(load_file(file), file) if file else read(request.get("inputs"))


@contextlib.contextmanager
def as_captured(step: Step) -> Iterator[None]:
    """Make a call with as many threads, and the memory limit, as in the captured program."""
    if step.get("threads"):  # the number of threads decides how kernels split work
        torch.set_num_threads(step["threads"])
    with limited(step.get("headroom")):
        yield


class Expected(list[torch.Tensor]):
    """What a call should return for the outputs `places` (empty: all), within the `limits` of a check."""

    places: Sequence[int] = ()
    limits: Limits = (None, None)

    def among(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """An expected tensor for each output: the output itself if nothing is expected there."""
        if max(self.places, default=len(outputs)) >= len(outputs):
            return self
        compared = dict(zip(self.places, self))
        return [compared.get(place, output) for place, output in enumerate(outputs)]


def expectation(path: str | None, side: str = "expected") -> Expected | None:
    """The tensors of a file, or one side if it holds a comparison. May raise `Refused`."""
    if not path:
        return None
    try:
        found = load_file(path, "expectation")
    except Refused as refused:
        raise Refused(refused.what, path, EXPECTATION) from None
    kept = found if isinstance(found, dict) and {"expected", "actual"} <= set(found) else {}
    tensors = Expected(only_tensors(kept.get(side, found)))
    tensors.places, tensors.limits = kept.get("places", ()), tuple(kept.get("limits", (None, None)))
    if not tensors:
        raise Refused("the expectation holds no tensor", path, EXPECTATION)
    return tensors


def judge(request: RunRequest, expected: list[torch.Tensor] | None, result: Any, report: Report) -> None:
    """Report `compared_expected` and `checked_outputs`. Refuse a check that the expected outputs fail."""
    outputs = only_tensors(result)
    if expected is not None:
        limits = (request.get("rtol"), request.get("atol"))
        report.event(as_expected(expected, outputs, limits, given=True))
    check = request.get("check")
    if not check:
        return
    report.phase("checking_outputs")
    found = run_check(check, outputs)
    report.event(found)
    if found.status and expected is not None and run_check(check, expected).status:
        printed = ": " + found.text[-300:] if found.text else ""
        what = "the check command fails on the expected outputs, too" + printed
        raise Refused(what, " ".join(check), "a command that ends with status 0 for good outputs")


def as_expected(
    expected: list[torch.Tensor], outputs: list[torch.Tensor], limits: Limits = (None, None), *, given: bool
) -> events.ComparedExpected:
    """Compare the outputs with those that the user (`given`) or the program expects."""
    compared = compare_calls("expectation", expected, outputs, limits)
    counts, found = [len(expected), len(outputs)], with_distances(compared, expected, outputs)
    return events.ComparedExpected(compared.equal, counts, found, given, compared.layout)


def run_check(argv: Sequence[str], outputs: list[torch.Tensor]) -> events.CheckFacts:
    """Run `argv` with the path of a `torch.save`d list of `outputs` as the last argument.

    Status 0 means correct and 1 wrong. Raise `Refused` for any other status, and for a command that cannot be
    started or does not end, since it then says nothing about the outputs.
    """
    command = " ".join(argv)
    with tempfile.TemporaryDirectory(prefix="aoti-debug-outputs-") as directory:
        path = os.path.join(directory, "outputs.pt")
        torch.save([tensor.detach().cpu() for tensor in outputs], path)
        with open(os.path.join(directory, "printed.txt"), "w+b") as printed:
            try:
                status = subprocess.run(
                    [*argv, path],
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    timeout=CHECK_LIMIT_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                what = "the check command did not end within {:g} s".format(CHECK_LIMIT_S)
                raise Refused(what, command) from None
            except OSError as error:
                what = "the check command cannot be started: {}".format(error.strerror)
                raise Refused(what, command, "a program that may be executed") from None
            printed.seek(max(0, printed.tell() - TEXT_LIMIT))
            text = printed.read().decode("utf-8", "replace").strip()
    if status not in (0, 1):
        why = "died of signal {}".format(-status) if status < 0 else "ended with status {}".format(status)
        what = "the check command {}, which says nothing about the outputs: {}".format(why, text[-300:])
        raise Refused(what, command, "a program that ends with status 0 (right) or 1 (wrong)")
    return events.CheckFacts(status, text)


def call(function: Callable[[], Any], index: int, report: Report) -> Any:
    """Call `function` and wait for the GPU. Report `calling` before and `called` after it."""
    report.phase("calling", str(index))
    start = time.monotonic()
    with torch.no_grad():
        result = function()
    synchronize()
    seconds = time.monotonic() - start
    report.event(events.Called(index, seconds, leaf_facts(result)))
    return result


def watching(how: str | None, report: Report) -> ContextManager[Any]:
    """A context in which custom operators are watched or repaired, if the request says so."""
    if not how:
        return contextlib.nullcontext()
    from .interpret import Operators  # imports much of torch that a plain call does not need

    return Operators(report, repair=how == "repair")
