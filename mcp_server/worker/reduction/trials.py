"""Runs cut programs in isolated children, in parallel, and keeps those that still fail in the same way.

A child that dies or hangs is a normal result.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import runpy
import shutil
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Generator, Optional, Sequence

import torch

from .. import events
from ..interpret import stack_of
from ..protocol import FailureClass
from ..report import Report
from .program import Cut, Plan, Program, Uncuttable, size_in_bytes
from .script import DEPARTS, NO_FAULT, NOT_FINITE, SCRIPT, Setting, write

LOG = "output.log"
POLL_S = 0.05
MOST_NODES = 50  # of a reproduction that are reported
READ = 1 << 20  # bytes of a log that are looked at, from its start and from its end
# What changes between two failures of one kind: addresses, numbers, names of temporaries, kernels and files.
_VOLATILE = re.compile(r"0x[0-9a-f]+|/\S+|\b(?:cpp|triton)_\w+|\d+")


@dataclass(frozen=True)
class Ended:
    """How a reproduction ended: `status` as of `subprocess` (negative: the signal), None after `kill`."""

    directory: str
    status: Optional[int]
    seconds: float

    @property
    def text(self) -> str:
        log = Path(self.directory, LOG)
        with log.open("rb") as file:
            start = file.read(READ)
            file.seek(max(file.tell(), log.stat().st_size - READ))
            return (start + file.read()).decode("utf-8", "replace")

    @property
    def phase(self) -> str:
        phases = re.findall(r"^phase: (.*)$", self.text, re.MULTILINE)
        return phases[-1] if phases else ""


class Child:
    """One running reproduction, in a process group of its own.

    With `fork` it is a copy of this process, which has torch and its compiler imported: that saves seconds
    each time. Only where no CUDA context and no thread pool exist yet, neither of which survives a fork.
    """

    def __init__(self, directory: str, fork: bool, limit_s: float) -> None:
        self.directory = directory
        self.start = time.monotonic()
        self.limit_s = limit_s
        log, flags = os.path.join(directory, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if not fork:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-u", os.path.join(directory, SCRIPT)],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600), (os.POSIX_SPAWN_DUP2, 1, 2)],
                setpgroup=0,
            )
            return
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        with contextlib.suppress(OSError):  # the other side may have done it, or have ended already
            os.setpgid(self.pid, self.pid)
        if self.pid == 0:
            os._exit(_run_script(directory, os.open(log, flags, 0o600)))

    def poll(self) -> Optional[Ended]:
        """How the child ended; None while it runs. Ends the child at its time limit."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        seconds = time.monotonic() - self.start
        if pid:
            self._kill_group()
            return Ended(self.directory, os.waitstatus_to_exitcode(status), seconds)
        if seconds > self.limit_s:
            self.kill()
            return Ended(self.directory, None, seconds)
        return None

    def kill(self) -> None:
        self._kill_group()
        os.waitpid(self.pid, 0)

    def _kill_group(self) -> None:
        """Kill the child and the compilers that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _run_script(directory: str, log: int) -> int:
    """In a forked child: run the script as Python would; its exit status."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1, closefd=False), os.fdopen(2, "w", 1, closefd=False)
    faulthandler.enable()
    sys.argv[:] = [SCRIPT]
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        runpy.run_path(os.path.join(directory, SCRIPT), run_name="__main__")
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


class OutOfTime(Exception):
    """The time for the whole search is over."""


@dataclass(frozen=True)
class Limits:
    """`until` is on the monotonic clock; `each_s` bounds one candidate; `parallel` run at the same time."""

    until: float
    each_s: float
    parallel: int


def in_parallel(
    directories: Sequence[str], limits: Limits, fork: bool
) -> Generator[tuple[int, Ended], None, None]:
    """Run the scripts in their order, several at a time; each with its number as it ends.

    Closing the iterator ends those that still run. Raises `OutOfTime`: a script that the clock of the search
    ended says nothing about the failure.
    """
    running: dict[int, Child] = {}
    waiting = list(enumerate(directories))
    try:
        while waiting or running:
            while waiting and len(running) < limits.parallel:
                left = limits.until - time.monotonic()
                if left <= 0:
                    raise OutOfTime
                number, directory = waiting.pop(0)
                running[number] = Child(directory, fork, min(limits.each_s, left))
            time.sleep(POLL_S)
            polled = [(number, child.poll()) for number, child in running.items()]
            done = [(number, ended) for number, ended in polled if ended is not None]
            for number, _ in done:  # all of them first: the reader may close this after any
                del running[number]
            for number, ended in done:
                if ended.status is None and time.monotonic() >= limits.until:
                    raise OutOfTime
                yield number, ended
    finally:
        for child in running.values():
            child.kill()


def shown_by(failure: FailureClass, status: Optional[int], phase: str, text: str) -> bool:
    """Whether a child with this end and this output shows the failure."""
    if failure.kind == "not_finite":
        return status == NOT_FINITE and (not failure.nan or bool(re.search(r"holds [1-9]\d* nan", text)))
    if failure.kind == "departs":
        return status == DEPARTS
    expected = status == -failure.signal if failure.kind == "crash" else (status, phase) == (1, failure.phase)
    lines = text.splitlines() or [""] if expected else []
    if failure.patterns:
        lines = [line for line in lines if any(re.search(pattern, line) for pattern in failure.patterns)]
    return any(essence(failure.essence) in essence(line) for line in lines)


def is_gone(failure: FailureClass, status: Optional[int], text: str) -> bool:
    """Whether the failure is gone. Infinity counts as gone if eager has it too."""
    as_in_eager = failure.kind == "departs" and status == NOT_FINITE and "departs: " not in text
    return status == NO_FAULT or as_in_eager


def essence(line: str) -> str:
    """A line without what changes from run to run."""
    return _VOLATILE.sub("#", line).strip()


@dataclass
class Trials:
    """Tries plans; the reproduction of the smallest that still fails lies in `directory`/best."""

    program: Program
    make: Callable[[Plan], Cut]
    failure: FailureClass
    setting: Setting
    limits: Limits
    fork: bool
    directory: str
    report: Report
    tried: dict[Plan, bool] = field(default_factory=dict)
    count: int = 0

    def first_failing(self, plans: Sequence[Plan]) -> Optional[int]:
        """The number of the first plan that still fails in the same way, or None. Raises `OutOfTime`."""
        known = next((n for n, plan in enumerate(plans) if self.tried.get(plan)), None)
        ahead = plans[:known] if known is not None else plans
        written = {n: path for n, plan in enumerate(ahead) if (path := self._write(plan))}
        numbers = list(written)
        results: dict[int, bool] = {}
        run = in_parallel(list(written.values()), self.limits, self.fork)
        try:
            for place, ended in run:
                plan = plans[numbers[place]]
                results[numbers[place]] = self.tried[plan] = self._judge(plan, ended)
                # Wait until one fails and all before it have ended otherwise.
                first = next((n for n in numbers if results.get(n, True)), None)
                if first in results:
                    self._keep(plans[first], written[first])
                    return first
        finally:
            run.close()
            for path in written.values():
                shutil.rmtree(path, ignore_errors=True)
        return known

    def _write(self, plan: Plan) -> Optional[str]:
        """The directory of a new reproduction; None for a plan that was tried or cannot be cut."""
        if plan in self.tried:
            return None
        path = os.path.join(self.directory, "candidate-{}".format(self.count))
        self.count += 1
        try:
            found = self.make(plan)
        except Uncuttable as reason:
            self.tried[plan] = False
            self.report.event(events.Uncuttable(str(reason), len(plan.keep)))
            return None
        os.makedirs(path)
        write(found, plan.seeded, self.setting, path)
        return path

    def _judge(self, plan: Plan, ended: Ended) -> bool:
        text, phase = ended.text, ended.phase
        same = shown_by(self.failure, ended.status, phase, text)
        tail = "" if same else text[-300:]
        nodes = len(plan.keep)
        self.report.event(events.Candidate(nodes, ended.status, phase, ended.seconds, same, tail))
        return same

    def _keep(self, plan: Plan, path: str) -> None:
        """Point the link `best` to this reproduction: a stop at any time leaves a whole one there."""
        final = os.path.join(self.directory, "best-{}".format(self.count))
        self.count += 1
        os.rename(path, final)
        link = os.path.join(self.directory, "best")
        os.symlink(os.path.basename(final), link + ".new")
        os.replace(link + ".new", link)
        real = {name: value for name, value in self.make(plan).tensors.items() if name not in plan.seeded}
        nodes = [node for node in self.program.nodes if node.name in plan.keep]
        self.report.event(
            events.Kept(
                directory=final,
                operators=len(nodes),
                nodes=[events.OfNode(n.name, str(n.target), stack_of(n)) for n in nodes[:MOST_NODES]],
                dynamic=plan.dynamic,
                seeded=sorted(plan.seeded),
                real=sorted(real),
                bytes=size_in_bytes(real),
            )
        )
