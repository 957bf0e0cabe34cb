"""`bisect --torch`: the first release of torch in which a program fails, in environments that are kept."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Command
from mcp_server.model import Cost, ExportedWorkload, Record, ScriptWorkload
from mcp_server.package.exported import exported_device
from mcp_server.probes.cache import default_root
from mcp_server.tools.context import Context
from mcp_server.tools.reduce.failing import FailureShown
from mcp_server.tools.reduce.reduce import NoFailure, failing_program
from mcp_server.versions import FIRST, LAST, RANGE, Release, release_of, text
from mcp_server.worker.events import Torch

Result = Literal["fails", "passes", "unknown"]
Outcome = Literal["first_bad", "narrowed", "fails_in_all", "not_found"]
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"  # 0.2 GB; those of the package index are for CUDA, 3 GB
INDEX = "AOTI_DEBUG_TORCH_INDEX"  # another index for the wheels
INSTALL_S = 1800.0
ASKED = re.compile(r"(\d+\.\d+)\.\.(\d+\.\d+)")


class ReleaseTried(Record):
    """One release: `unknown` where torch could not be installed, or the program failed in another way."""

    release: str
    result: Result
    how: str
    seconds: float = 0.0


class ReleasesTried(Record):
    """`first_bad` is empty unless it follows `last_good` directly; `summary` then says what is known."""

    outcome: Outcome
    summary: str
    failure: FailureShown
    first_bad: str = ""
    last_good: str = ""
    tried: list[ReleaseTried] = Field(default_factory=list)
    environments: Path
    cost: Cost


async def bisect_releases(
    context: Context, workload: ExportedWorkload | ScriptWorkload, asked: str, *, budget_s: float
) -> ReleasesTried:
    """Search `asked` (`2.10..2.13`) for the first release with the failure that the own interpreter shows.

    A script is exported and compiled anew in each release; an exported program has to be one that the other
    release can read. Raises `ProblemError` for a range that is not supported, and for a healthy program.
    """
    releases = releases_of(asked)
    failing = await failing_program(context, workload)
    device = await anyio.to_thread.run_sync(exported_device, failing.target.workload.exported)
    environments = Environments(context, context.python_for(workload), device)
    torch = failing.attempt.last(Torch)
    own = release_of(torch.version if torch is not None else "")
    end = time.monotonic() + budget_s

    async def outcome_of(release: Release) -> tuple[Result, str]:
        left = end - time.monotonic()
        if release == own:
            return "fails", f"{failing.failure} (the interpreter in use)"
        if left < 0:
            return "unknown", "no time was left for it (budget_s)"
        try:
            python = await environments.python(release, min(INSTALL_S, left))
            other = await failing_program(context, workload.model_copy(update={"python": python}))
        except NoFailure:
            return "passes", "compiles, runs, and agrees with eager"
        except ProblemError as problem:
            return "unknown", str(problem)
        return "fails" if failing.failure.same_as(other.failure) else "unknown", str(other.failure)

    async def attempt(release: Release) -> ReleaseTried:
        start = time.monotonic()
        result, how = await outcome_of(release)
        took = round(time.monotonic() - start, 1)
        return ReleaseTried(release=text(release), result=result, how=how[:400], seconds=took)

    found = Search(releases, attempt)
    await found.run()
    outcome, summary = found.conclusion()
    good, bad = found.ends
    return ReleasesTried(
        outcome=outcome,
        summary=summary,
        first_bad=text(bad) if bad and outcome == "first_bad" else "",
        last_good=text(good) if good else "",
        failure=failing.failure,
        tried=[found.tried[release] for release in sorted(found.tried)],
        environments=environments.root,
        cost=context.cost.cost(),
    )


def releases_of(asked: str) -> list[Release]:
    """The releases of a range. Raises `ProblemError` for one that is none, or not supported."""
    match = ASKED.fullmatch(asked.strip())
    ends = [release_of(end) for end in match.groups()] if match else []
    if len(ends) != 2 or ends[0] is None or ends[1] is None or not FIRST <= ends[0] < ends[1] <= LAST:
        raise ProblemError(
            "these are no two releases of torch to search between",
            value=asked,
            allowed=f"{text(FIRST)}..{text(LAST)} or part of it (torch {RANGE} is supported)",
        )
    return [(ends[0][0], minor) for minor in range(ends[0][1], ends[1][1] + 1)]


@dataclass
class Search:
    """Halves the releases between one that is good and one that is bad; what cannot be tried is left out."""

    releases: list[Release]
    attempt: Callable[[Release], Awaitable[ReleaseTried]]
    tried: dict[Release, ReleaseTried] = field(default_factory=dict)

    async def run(self) -> None:
        """The ends first: from the last release down to one that fails, from the first up to a known one."""
        for ordered, wanted in ((self.releases[::-1], ("fails",)), (self.releases, ("fails", "passes"))):
            for release in ordered:
                if await self._result(release) in wanted:
                    break
        while left := [one for one in self._between() if one not in self.tried]:
            await self._result(left[len(left) // 2])

    async def _result(self, release: Release) -> Result:
        if release not in self.tried:
            self.tried[release] = await self.attempt(release)
        return self.tried[release].result

    def _of(self, result: Result) -> list[Release]:
        return sorted(release for release, one in self.tried.items() if one.result == result)

    @property
    def ends(self) -> tuple[Release | None, Release | None]:
        """The last good release before the first bad one, and that."""
        bad = next(iter(self._of("fails")), None)
        good = [release for release in self._of("passes") if bad is None or release < bad]
        return (good[-1] if good else None), bad

    def _between(self) -> list[Release]:
        good, bad = self.ends
        if good is None or bad is None:
            return []
        return [release for release in self.releases if good < release < bad]

    def conclusion(self) -> tuple[Outcome, str]:
        """The outcome, and one sentence for it, with what is not known."""
        good, bad = self.ends
        unknown = ", ".join(map(text, self._of("unknown")))
        untried = f" Not known: torch {unknown}; `tried` has the reasons." if unknown else ""
        if bad is None:
            return "not_found", f"No release of these shows the failure.{untried}"
        if good is None:
            return "fails_in_all", f"Torch {text(bad)}, the first of these that is known, fails.{untried}"
        since = f"torch {text(bad)} fails, and torch {text(good)} does not"
        if self._between():
            return "narrowed", f"The failure is from between two releases: {since}.{untried}"
        return "first_bad", f"The first bad release is torch {text(bad)}: {since}.{untried}"


@dataclass(frozen=True)
class Environments:
    """Virtual environments with one release of torch each, made from the interpreter of the workload.

    What else that interpreter has is found there, too, after torch: the program may import it.
    """

    context: Context
    base: Path
    device: str | None

    @property
    def root(self) -> Path:
        """In the folder of the caches (AOTI_DEBUG_CACHE). What is in it can be deleted at any time."""
        return default_root() / "torch"

    def place(self, release: Release) -> Path:
        """The environment of a release, whether it is there or not."""
        base = hashlib.sha256(str(self.base).encode()).hexdigest()[:8]
        return self.root / f"{text(release)}-{self.device or 'any'}-{base}"

    async def python(self, release: Release, limit_s: float) -> Path:
        """The interpreter with this release, installed if need be. Raises `ProblemError` if it cannot be."""
        place = self.place(release)
        if not (place / "bin" / "python").exists():
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            made = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=self.root))
            try:
                await self._install(made, release, limit_s)
                if not place.exists():
                    made.rename(place)
            finally:
                await anyio.to_thread.run_sync(lambda: shutil.rmtree(made, ignore_errors=True))
        return place / "bin" / "python"

    async def _install(self, made: Path, release: Release, limit_s: float) -> None:
        index = os.environ.get(INDEX) or (CPU_WHEELS if self.device == "cpu" else "")
        pip = (str(made / "bin" / "python"), "-m", "pip", "install", "--no-input", "--retries", "1")
        where = ("--index-url", index) if index else ()
        own = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self.context.progress(f"installing torch {text(release)}")
        for argv in (
            (str(self.base), "-m", "venv", str(made)),
            (*pip, "--only-binary", ":all:", *where, f"torch=={text(release)}.*", "setuptools"),
        ):
            command = Command(argv=argv, cwd=self.root, env=own, timeout_s=limit_s)
            done = await self.context.run(command, f"torch-{text(release)}")
            if not done.ok:
                lines = done.output.read_text(encoding="utf-8", errors="replace").splitlines()
                errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
                lost = "Connection" in "\n".join(lines) or "name resolution" in "\n".join(lines)
                raise ProblemError(
                    f"torch {text(release)} cannot be installed{' without a network' if lost else ''}",
                    value="; ".join(errors)[:300],
                    allowed=f"an index that has it ({INDEX}), and an interpreter that it supports",
                )
        packages = self.base.parent.parent.glob("lib/python3*/site-packages")
        own_packages = "\n".join(str(path) for path in packages)
        for site in made.glob("lib/python3*/site-packages"):
            (site / "aoti_debug_workload.pth").write_text(own_packages + "\n")
