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
from typing import Any, Callable, Iterator, Optional, Sequence, TypeVar

import torch

from ..report import Report
from .program import Cut, Plan, Uncuttable, size_in_bytes
from .script import DEPARTS, NOT_FINITE, SCRIPT, Setting, write

LOG = "output.log"
POLL_S = 0.05
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
        """The last phase that the script printed."""
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
        """How it ended; None while it runs. Ends it at its time limit."""
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
        """Compilers that it started end with it."""
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


def in_parallel(
    directories: Sequence[str], start: Callable[[str], Child], count: int
) -> Iterator[tuple[int, Ended]]:
    """Run the scripts, `count` at a time in their order; each with its number as it ends.

    Closing the iterator ends those that still run.
    """
    running: dict[int, Child] = {}
    waiting = list(enumerate(directories))
    try:
        while waiting or running:
            while waiting and len(running) < count:
                number, directory = waiting.pop(0)
                running[number] = start(directory)
            time.sleep(POLL_S)
            polled = [(number, child.poll()) for number, child in running.items()]
            done = [(number, ended) for number, ended in polled if ended is not None]
            for number, _ in done:  # all of them first: the reader may close this after any
                del running[number]
            yield from done
    finally:
        for child in running.values():
            child.kill()


@dataclass(frozen=True)
class FailureClass:
    """What a candidate must show.

    `kind` is crash (killed by `signal`), error (an exception, in `phase`), not_finite (NaN in an output if
    `nan`, else infinity) or departs. `patterns` are of the family of its text; `essence` is a line of the
    text where no family knows it, or where the family alone would take one failed compile for another.
    """

    kind: str
    signal: int = 0
    phase: str = ""
    patterns: Sequence[str] = ()
    essence: str = ""
    nan: bool = False

    def shown_by(self, status: Optional[int], phase: str, text: str) -> bool:
        """Whether a child that ended so, with this output, failed in this way."""
        if self.kind == "not_finite":
            return status == NOT_FINITE and (not self.nan or bool(re.search(r"holds [1-9]\d* nan", text)))
        if self.kind == "departs":
            return status == DEPARTS
        expected = status == -self.signal if self.kind == "crash" else (status, phase) == (1, self.phase)
        return expected and any(self._in_line(line) for line in text.splitlines() or [""])

    def _in_line(self, line: str) -> bool:
        known = not self.patterns or any(re.search(pattern, line) for pattern in self.patterns)
        return known and essence(self.essence) in essence(line)


def essence(line: str) -> str:
    """A line without what changes from run to run."""
    return _VOLATILE.sub("#", line).strip()


class OutOfTime(Exception):
    """The time for the reduction is over."""


@dataclass(frozen=True)
class Limits:
    """`until` is on the monotonic clock; `each_s` bounds one candidate; `parallel` run at the same time."""

    until: float
    each_s: float
    parallel: int


@dataclass
class Trials:
    """`smallest` is the smallest plan that still failed; its reproduction lies in `directory`/best."""

    make: Callable[[Plan], Cut]
    describe: Callable[[Plan], dict[str, Any]]
    failure: FailureClass
    setting: Setting
    limits: Limits
    fork: bool
    directory: str
    report: Report
    smallest: Optional[Plan] = None
    tried: dict[Plan, bool] = field(default_factory=dict)
    count: int = 0

    def first_failing(self, plans: Sequence[Plan]) -> Optional[int]:
        """The number of the first plan that still fails in the same way; None when none does.

        Raises `OutOfTime`.
        """
        known = next((n for n, plan in enumerate(plans) if self.tried.get(plan)), None)
        ahead = plans[:known] if known is not None else plans
        written = [(n, path) for n, path in ((n, self._write(plan)) for n, plan in enumerate(ahead)) if path]
        try:
            found = self._first(written, plans)
        finally:
            for _, path in written:
                shutil.rmtree(path, ignore_errors=True)
        return found if found is not None else known

    def _first(self, written: list[tuple[int, str]], plans: Sequence[Plan]) -> Optional[int]:
        """Wait until one fails and all before it have ended otherwise."""
        results: dict[int, bool] = {}
        run = in_parallel([path for _, path in written], self._start, self.limits.parallel)
        try:
            for place, ended in run:
                if ended.status is None and time.monotonic() >= self.limits.until:
                    raise OutOfTime  # it was ended by the clock of the reduction, which says nothing
                number = written[place][0]
                results[place] = self.tried[plans[number]] = self._judge(plans[number], ended)
                first = next((p for p in range(len(written)) if results.get(p, True)), None)
                if first in results:
                    self._keep(plans[written[first][0]], written[first][1])
                    return written[first][0]
        finally:
            run.close()  # type: ignore[attr-defined]
        return None

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
            self.report.event("uncuttable", nodes=len(plan.keep), reason=str(reason))
            return None
        os.makedirs(path)
        write(found, plan.seeded, self.setting, path)
        return path

    def _start(self, directory: str) -> Child:
        left = self.limits.until - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return Child(directory, self.fork, min(self.limits.each_s, left))

    def _judge(self, plan: Plan, ended: Ended) -> bool:
        text, phase = ended.text, ended.phase
        same = self.failure.shown_by(ended.status, phase, text)
        self.report.event(
            "candidate",
            nodes=len(plan.keep),
            status=ended.status,
            phase=phase,
            seconds=ended.seconds,
            same=same,
            tail="" if same else text[-300:],
        )
        return same

    def _keep(self, plan: Plan, path: str) -> None:
        """Make this what the link `best` leads to: a stop at any time leaves a whole reproduction there."""
        self.smallest = plan
        final = os.path.join(self.directory, "best-{}".format(self.count))
        self.count += 1
        os.rename(path, final)
        link = os.path.join(self.directory, "best")
        os.symlink(os.path.basename(final), link + ".new")
        os.replace(link + ".new", link)
        real = {name: value for name, value in self.make(plan).tensors.items() if name not in plan.seeded}
        values = {"seeded": sorted(plan.seeded), "real": sorted(real), "bytes": size_in_bytes(real)}
        self.report.event("kept", directory=final, **self.describe(plan), **values)


T = TypeVar("T")

# Tries candidates, the earlier the better: the number of the first that still fails, None when none does.
FirstFailing = Callable[[Sequence[Sequence[T]]], Optional[int]]


def minimise(items: Sequence[T], first_failing: FirstFailing[T]) -> tuple[T, ...]:
    """Delta debugging: a part of `items`, in their order, that fails and of which no element can be left out.

    `items` themselves are taken to fail and are not tried. Halves come first, so that in a chain whose one
    element fails the number of rounds is logarithmic.
    """
    kept = tuple(items)
    pieces = 2
    while len(kept) >= 2:
        pieces = min(pieces, len(kept))
        parts = split(kept, pieces)
        # All parts but one, the last left out first: what comes late in a graph is rarely needed.
        others = [
            tuple(item for number, part in enumerate(parts) if number != out for item in part)
            for out in reversed(range(pieces))
        ]
        options = [*parts, *others] if pieces > 2 else parts
        found = first_failing(options)
        if found is not None:
            pieces = 2 if found < len(parts) else max(2, pieces - 1)
            kept = tuple(options[found])
        elif pieces == len(kept):
            break
        else:
            pieces *= 2
    return kept


def split(items: Sequence[T], pieces: int) -> list[tuple[T, ...]]:
    """`items` in consecutive parts of nearly one length; none is empty unless there are too few items."""
    borders = [round(len(items) * piece / pieces) for piece in range(pieces + 1)]
    return [tuple(items[borders[piece] : borders[piece + 1]]) for piece in range(pieces)]
