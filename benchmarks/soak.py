"""A long mixed load on one server: nothing may leak. `python benchmarks/soak.py PACKAGE [--jobs 500]`.

Several callers at once call tools on a real server over stdio: explanations, packages read, programs that
end well, crash, hang or start children of their own, journals of launches. At random, calls are cancelled,
jobs stopped and processes of jobs killed. Afterwards no process of a job is left, file descriptors and
folders are as the rules allow, and memory does not grow with the number of jobs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters

ROOT = Path(__file__).resolve().parent.parent
CALLERS = 4
SAMPLE_EVERY = 20
GROWTH_LIMIT = 0.15  # of memory, from the second tenth of the jobs to the end
ENDINGS = {
    "well": "print('done')",
    "crash": "import os; os.abort()",
    "children": "import subprocess; subprocess.Popen(['sleep', '60'])",
    "hang": "import time; time.sleep(60)",
    "loud": "print('x' * 3_000_000)",
}
TEXTS = (
    "RuntimeError: index out of bounds: 0 <= tmp6 < ks0",
    "CUDA error: an illegal memory access was encountered",
    "Segmentation fault (core dumped)",
    "ModuleNotFoundError: No module named 'x'",
)


@dataclass
class Soak:
    """What is asked, and what was seen."""

    package: Path
    scratch: Path
    total: int
    dice: random.Random
    begun: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    samples: list[tuple[int, int, int]] = field(default_factory=list)

    def request(self) -> tuple[str, dict[str, Any]]:
        """The next call: (tool, arguments)."""
        kind = self.dice.choices(("explain", "inspect", "run", "trace"), (4, 3, 4, 1))[0]
        package = {"package": str(self.package)}
        if kind == "explain":
            return "explain_error", {"text": self.dice.choice(TEXTS)}
        if kind == "inspect":
            return "inspect_package", {**package, "launch": self.dice.choice([-1, 0])}
        if kind == "trace":
            return "trace_launches", {**package, "timeout_s": 60, "wait_s": 45}
        script = self.scratch / f"{self.dice.choice(sorted(ENDINGS))}.py"
        arguments = {"script": str(script), "repeats": 1, "timeout_s": 3, "wait_s": 20}
        return "run_deterministic", arguments


def server_process(above: int) -> int:
    """The server that this process started."""
    return next(pid for pid in below(above) if b"mcp_server" in command_of(pid))


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def below(pid: int) -> list[int]:
    """All descendants of a process."""
    parents = dict(_parents())
    found, waiting = [], [pid]
    while waiting:
        now = waiting.pop()
        new = [child for child, parent in parents.items() if parent == now]
        found.extend(new)
        waiting.extend(new)
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue


def memory_of(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def descriptors_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def caller(soak: Soak, client: Client, server: int) -> None:
    """Call tools until the total is reached; one call in 8 is cancelled, one in 12 loses a process."""
    while soak.begun < soak.total:
        soak.begun += 1
        number = soak.begun
        tool, arguments = soak.request()
        cancel_after = soak.dice.uniform(0.05, 2.0) if soak.dice.random() < 1 / 8 else 120.0
        async with anyio.create_task_group() as beside:
            if soak.dice.random() < 1 / 12:
                beside.start_soon(kill_one, soak, server)
            outcome = "cancelled"
            with anyio.move_on_after(cancel_after):
                outcome = await answered(client, tool, arguments)
        soak.outcomes[f"{tool}: {outcome}"] += 1
        if number % SAMPLE_EVERY == 0:
            soak.samples.append((number, memory_of(server), descriptors_of(server)))


async def answered(client: Client, tool: str, arguments: dict[str, Any]) -> str:
    """How a call ended; a job that still runs is stopped."""
    result = await client.call_tool(tool, arguments)
    data = result.structured_content or {}
    if result.is_error:
        return "refused"
    if data.get("state") == "running":
        await client.call_tool("stop_job", {"job_id": data["job_id"]})
        return "stopped"
    return "answered"


async def kill_one(soak: Soak, server: int) -> None:
    """SIGKILL for some process of some job."""
    await anyio.sleep(soak.dice.uniform(0.2, 1.5))
    victims = below(server)
    if victims:
        try:
            os.kill(soak.dice.choice(victims), signal.SIGKILL)
        except ProcessLookupError:
            return
        soak.outcomes["killed processes"] += 1


async def load(soak: Soak, state: Path) -> list[str]:
    """The whole load on one server; what is wrong afterwards."""
    env = {"PATH": os.environ["PATH"], "AOTI_DEBUG_STATE": str(state), "AOTI_DEBUG_PYTHON": sys.executable}
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "mcp_server"],
        cwd=ROOT,
        env={**env, "TORCHINDUCTOR_VEC_ISA_OK": "1"},
    )
    async with Client(parameters) as client:
        server = server_process(os.getpid())
        async with anyio.create_task_group() as tasks:
            for _ in range(CALLERS):
                tasks.start_soon(caller, soak, client, server)
        await anyio.sleep(2)
        soak.samples.append((soak.begun, memory_of(server), descriptors_of(server)))
        return list(wrong(soak, server))


def wrong(soak: Soak, server: int) -> Iterator[str]:
    """Processes that are left, and memory or descriptors that grew."""
    left = [command_of(pid).replace(b"\0", b" ").decode(errors="replace")[:120] for pid in below(server)]
    if left:
        yield f"{len(left)} processes are left: {left[:3]}"
    settled = soak.samples[len(soak.samples) // 10]
    last = soak.samples[-1]
    if last[1] > settled[1] * (1 + GROWTH_LIMIT):
        yield f"memory grew from {settled[1] >> 20} to {last[1] >> 20} MB"
    if last[2] > settled[2] + 2:
        yield f"descriptors grew from {settled[2]} to {last[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", type=Path, help="a CPU package that can be called with made-up inputs")
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in ENDINGS.items():
            (Path(scratch) / f"{name}.py").write_text(text + "\n")
        soak = Soak(given.package.resolve(), Path(scratch), given.jobs, random.Random(given.seed))
        begun = time.monotonic()
        faults = anyio.run(load, soak, Path(scratch) / "state")
        report(soak, time.monotonic() - begun)
        folders = len(list((Path(scratch) / "state" / "jobs").iterdir()))
    print(f"{folders} job folders are kept")
    print("\n".join(faults) or "nothing leaked")
    return 1 if faults else 0


def report(soak: Soak, seconds: float) -> None:
    print(f"{soak.begun} calls in {seconds:.0f} s")
    for name, count in sorted(soak.outcomes.items()):
        print(f"  {count:4} {name}")
    for number, memory, descriptors in soak.samples:
        print(f"  after {number:4}: {memory >> 20} MB, {descriptors} descriptors")


if __name__ == "__main__":
    sys.exit(main())
