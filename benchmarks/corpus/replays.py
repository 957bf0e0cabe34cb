"""Does the captured call of each failing program fail alike by itself?

    python -m benchmarks.corpus.replays [--needs cpu] [--only a,b] [--jobs 2] [--json FILE]

Each program runs once under the capture hook, then what failed is made again in the worker. A replay that
does not give the same must say that it is another failure, or that the failure needs the program; a program
that has nothing to replay must say so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import anyio

from benchmarks.corpus.answers import Answer
from benchmarks.corpus.validate import CASES, select
from mcp_server.errors import ProblemError
from mcp_server.model import ScriptWorkload
from mcp_server.steps.capture import capture
from mcp_server.steps.context import Context
from mcp_server.steps.replay import replay
from tools.made import MADE

CACHE = MADE / "corpus" / "inductor"


def main() -> None:
    """Capture, replay, count."""
    asked = _arguments()
    names = asked.only.split(",") if asked.only else []
    answers = select(asked.directory, asked.needs, names)
    rows = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for row in pool.map(partial(_one, directory=asked.directory), answers):
            rows.append(row)
            print(f"{row['name']:24} {row['verdict']:14} {row['phase']:8} {row['reason'][:100]}", flush=True)
    print(dict(Counter(row["verdict"] for row in rows)))
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--needs", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--directory", type=Path, default=CASES)
    parser.add_argument("--only", default="", help="names of cases, with commas between")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _one(answer: Answer, directory: Path) -> Mapping[str, str]:
    with tempfile.TemporaryDirectory() as name:
        return anyio.run(_replayed, answer, directory / f"{answer.name}.py", Path(name))


async def _replayed(answer: Answer, script: Path, place: Path) -> dict[str, str]:
    context = Context(place / "job", Path(sys.executable))
    env = {
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(CACHE / answer.name)),
    }
    workload = ScriptWorkload(script=script, cwd=place, env=env, timeout_s=max(answer.timeout_s, 60))
    seen = await capture(context, workload)
    try:
        found = await replay(context, seen, env=env, cwd=place)
    except ProblemError as problem:
        return _row(answer, "nothing", "", str(problem))
    return _row(answer, found.verdict, found.phase, found.reason)


def _row(answer: Answer, verdict: str, phase: str, reason: str) -> dict[str, str]:
    return {
        "name": answer.name,
        "category": answer.category or "no_fault",
        "verdict": verdict,
        "phase": phase,
        "reason": reason,
    }


if __name__ == "__main__":
    main()
