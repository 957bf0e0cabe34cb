"""What each tool sees of each memory fault, and what `locate_fault` concludes: the table of the README.

On a machine with a GPU: `python benchmarks/memory_faults/run.py --out DIRECTORY --jobs 12`; with `--device
cpu` the programs that need no GPU. Compiles every program, then runs each one plainly, with the official
flags, under memcheck and with a core dump, and through `locate_fault`. Writes `table.md`, `table.json` and,
per program, the package, its inputs and all raw outputs. Nothing is started after `--budget` seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import anyio  # noqa: E402
from programs import PROGRAMS, Program  # noqa: E402

from mcp_server.memory_faults import Fault  # noqa: E402
from mcp_server.model import PackageWorkload  # noqa: E402
from mcp_server.package.view import view_package  # noqa: E402
from mcp_server.probes.commands import Options  # noqa: E402
from mcp_server.runtime.context import Context  # noqa: E402
from mcp_server.runtime.failure import read_failure  # noqa: E402
from mcp_server.tools import fault_run  # noqa: E402
from mcp_server.tools.fault_run import prepare  # noqa: E402
from mcp_server.tools.locate_fault import LocatedFault, locate_fault  # noqa: E402
from mcp_server.tools.machine import find_tool  # noqa: E402
from mcp_server.tools.requests import run_request  # noqa: E402
from mcp_server.tools.run_deterministic import BLOCKING, CACHING_OFF  # noqa: E402

KEPT = (".log", ".jsonl", ".xml", ".json", ".pt", ".pt2")
LONGEST = 400_000
JOURNALED = ("write_adjacent", "missing_mask")
COMPILE_S, RUN_S = 240, 120


@dataclass
class Row:
    """One program of the table; `right` compares kernel, argument and guilty party with the truth."""

    name: str
    kind: str
    plain: str = ""
    flags: str = ""
    memcheck: str = ""
    core_dump: str = ""
    located: str = ""
    right: dict[str, bool] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    error: str = ""


def main() -> None:
    """Compile, run, write."""
    asked = _arguments()
    if asked.device == "cuda":
        import cuda_programs  # noqa: F401 - adds its programs and triton's
    chosen = [p for p in PROGRAMS.values() if asked.device in p.devices]
    chosen = [p for p in chosen if not asked.only or p.name in asked.only.split(",")]
    asked.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + asked.budget
    rows: list[Row] = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        work = partial(_program, device=asked.device, out=asked.out, deadline=deadline)
        for row in pool.map(work, chosen):
            rows.append(row)
            _write(asked.out, rows)
    print((asked.out / "table.md").read_text())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 4) + 8)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--budget", type=float, default=340, help="seconds")
    parser.add_argument("--only", default="", help="names of programs, with commas between")
    return parser.parse_args()


def _program(program: Program, device: str, out: Path, deadline: float) -> Row:
    row = Row(program.name, program.kind)
    where = out / program.name
    where.mkdir(exist_ok=True)
    try:
        row.seconds["compile"] = compile_program(program.name, where, device, deadline)
        anyio.run(_runs, program, where, device, row, deadline)
    except Exception as error:  # one program must not cost the others' results
        row.error = f"{type(error).__name__}: {error}"[:400]
    finally:
        _forget(where)
    print(f"{program.name}: {row.located or row.error}", flush=True)
    return row


def compile_program(name: str, where: Path, device: str, deadline: float) -> float:
    """Compile one program into `where`, in a process and cache of its own; the seconds that took."""
    start = time.monotonic()
    environment = {
        **os.environ,
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "INDUCTOR_PROVENANCE": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(where / "cache"),
        "TRITON_CACHE_DIR": str(where / "cache" / "triton"),
    }
    argv = [sys.executable, "-W", "ignore", str(HERE / "build.py"), name, str(where), device]
    with (where / "compile.log").open("wb") as log:
        limit = min(COMPILE_S, max(1.0, deadline - start))
        subprocess.run(argv, env=environment, stdout=log, stderr=log, timeout=limit, check=False)
    if not (where / f"{name}.pt2").exists():
        raise RuntimeError("does not compile: " + (where / "compile.log").read_text()[-600:])
    return round(time.monotonic() - start, 2)


async def _runs(program: Program, where: Path, device: str, row: Row, deadline: float) -> None:
    imports = ["cuda_programs.py" if device == "cuda" else "programs.py"]
    workload = PackageWorkload(
        package=where / f"{program.name}.pt2",
        inputs=where / f"{program.name}.bad.pt",
        extra_imports=[str(HERE / name) for name in imports],
        timeout_s=RUN_S,
    )
    context = Context(where / "runs", Path(sys.executable))
    os.environ["AOTI_DEBUG_CACHE"] = str(where / "rebuilt")  # each program alone, one after the other

    async def plain() -> None:
        row.plain, row.seconds["plain"] = await _plainly(context, workload, {}, "plain")

    async def flagged() -> None:
        row.flags, _ = await _plainly(context, workload, {**CACHING_OFF, **BLOCKING}, "flags")

    async def located() -> None:
        start = time.monotonic()
        found = await _located(where, workload, program.tool, "located")
        row.seconds["locate"] = round(time.monotonic() - start, 2)
        row.located, row.right = found.summary, judge(program, found)

    await _each([plain, located], deadline)
    if device == "cuda":
        others = [
            flagged,
            partial(_memcheck, where, workload, row),
            partial(_core, where, workload, row),
        ]
        if program.name in JOURNALED:
            others.append(partial(_cached, where, workload))
        await _each(others, deadline)


async def _plainly(
    context: Context, workload: PackageWorkload, flags: dict[str, str], name: str
) -> tuple[str, float]:
    """How the call ended without a checker, and its seconds."""
    request = run_request(workload)
    done = await context.worker("run", request, name=name, workload=workload, env=flags, alone=True)
    failure = read_failure(done.finished)
    told = f"{failure.signal or failure.returncode}: {failure.text}"[:300] if failure else "clean"
    return told, round(done.finished.wall_s, 3)


async def _cached(where: Path, workload: PackageWorkload) -> None:
    """The addresses of a run with the caching allocator on: what the picture of the guide is drawn from."""
    context = Context(where / "cached", Path(sys.executable))
    target = await prepare(context, workload, Options(separate_weights=True))
    await target.run(context, context.fresh("cached"), env={})


async def _each(work: list[Any], deadline: float) -> None:
    """One after the other: a time that is measured beside others says nothing."""
    for one in work:
        if time.monotonic() < deadline:
            await one()


async def _located(where: Path, workload: PackageWorkload, tool: Any, name: str) -> LocatedFault:
    context = Context(where / name, Path(sys.executable))
    found = await locate_fault(context, workload, tool=tool)
    (where / f"{name}.json").write_text(found.model_dump_json(indent=1, exclude_defaults=True))
    return found


async def _memcheck(where: Path, workload: PackageWorkload, row: Row) -> None:
    """memcheck on the package as it is."""
    program = find_tool("compute-sanitizer", {}, Path(sys.executable))
    if program is None:
        row.memcheck = "no compute-sanitizer"
        return
    context = Context(where / "memcheck", Path(sys.executable))
    view = view_package(workload.package)
    done = await context.worker(
        "run",
        run_request(workload),
        workload=workload,
        env=CACHING_OFF,
        prefix=fault_run.sanitizer_prefix(program, "memcheck"),
    )
    report, _ = fault_run.read_report(done.finished.output, "memcheck", view)
    site = next(iter(report.faults), None)
    told = f"{site.text}, {site.kernel}:{site.line}" if site else "nothing"
    row.memcheck = f"{told} ({report.errors} errors)"
    row.seconds["memcheck"] = round(done.finished.wall_s, 2)


async def _core(where: Path, workload: PackageWorkload, row: Row) -> None:
    found = await _located(where, workload, "core_dump", "core")
    fault = found.fault
    row.core_dump = f"{fault.text}, {fault.kernel}:{fault.generated_line}" if fault else "nothing"


def judge(program: Program, found: LocatedFault) -> dict[str, bool]:
    """Compare with the truth; what the truth leaves open is not judged."""
    truth, fault = program.truth, found.fault
    if not truth.fault:
        return {"clean": fault is None}
    if fault is None:
        return {"found": False}
    right = {"found": True}
    if truth.kernel:
        right["kernel"] = truth.kernel in fault.kernel
    if truth.argument:
        right["argument"] = fault.missed is not None and fault.missed.variable.startswith(truth.argument)
    if truth.guilty:
        right["guilty"] = _guilty(fault, truth.guilty, truth.input_index)
    return right


def _guilty(fault: Fault, kinds: tuple[str, ...], index: int | None) -> bool:
    blame = fault.blame
    return blame is not None and blame.kind in kinds and (index is None or blame.input_index == index)


def _forget(where: Path) -> None:
    """Keep what a recording needs: no caches, no core files, long logs cut."""
    for name in ("cache", "rebuilt"):
        shutil.rmtree(where / name, ignore_errors=True)
    for path in sorted(where.rglob("*"), reverse=True):
        if path.is_dir():
            continue
        if path.suffix not in KEPT or path.name in ("stdout.log", "stderr.log"):
            path.unlink()
        elif path.suffix in (".log", ".xml") and path.stat().st_size > LONGEST:
            path.write_bytes(path.read_bytes()[:LONGEST])


def _write(out: Path, rows: list[Row]) -> None:
    (out / "table.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    head = "| program | fault | plain | official flags | memcheck | core dump | locate_fault | right |"
    lines = [head, "|" + " --- |" * 8]
    for row in rows:
        right = ", ".join(f"{key}: {'yes' if value else 'NO'}" for key, value in row.right.items())
        cells = [row.name, row.kind, row.plain, row.flags, row.memcheck, row.core_dump]
        cells += [row.located or row.error, right]
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    (out / "table.md").write_text("\n".join(lines) + "\n")


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:400]


if __name__ == "__main__":
    main()
