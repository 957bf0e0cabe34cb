"""`make demo`: compile a small ranker, feed it the batch that breaks it, and diagnose that."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from mcp_server.cli.main import Exit
from mcp_server.cli.terminal import carried_out, print_problem, print_result
from mcp_server.errors import ProblemError
from mcp_server.model import Verdict
from mcp_server.operations.arguments import DiagnoseArguments
from mcp_server.operations.table import DIAGNOSE
from tools.made import MADE

EXAMPLES = Path(__file__).resolve().parent
DIRECTORY = MADE / "demo"
PACKAGE = DIRECTORY / "ranker.pt2"
BATCH = DIRECTORY / "bad.pt"
GO_ON = f"cd {DIRECTORY} && export PATH={Path(sys.executable).parent}:$PATH"
EXPECTED = "index_out_of_bounds"

# Model lines in the verdict need provenance; trusting the CPU's vector units saves compiling probes for them.
COMPILE_ENV = {
    "INDUCTOR_PROVENANCE": "1",
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "TORCHINDUCTOR_CACHE_DIR": str(DIRECTORY / "inductor"),
}


def compile_ranker(console: Console) -> None:
    """Make the package and both batches, unless the same source made them: a copy of it lies beside them."""
    source, made_of = EXAMPLES / "ranker.py", DIRECTORY / "ranker.py"
    if BATCH.exists() and made_of.exists() and filecmp.cmp(source, made_of, shallow=False):
        console.print(f"using the package of an earlier run: {PACKAGE}", style="dim", soft_wrap=True)
        return
    argv = [sys.executable, "-W", "ignore", str(source), str(DIRECTORY)]
    with console.status("compiling the ranker with AOTInductor (about half a minute, once)"):
        done = subprocess.run(
            argv, env={**os.environ, **COMPILE_ENV}, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise ProblemError(
            "the demo's model does not compile here", value=done.stderr[-2000:], next_call="aoti-debug doctor"
        )
    shutil.copy(source, made_of)
    console.print(f"compiled {PACKAGE}", style="dim", soft_wrap=True)


def diagnose_ranker(console: Console) -> Verdict:
    """Diagnose the bad batch as `aoti-debug diagnose` does, and print the verdict."""
    console.print(f"$ aoti-debug diagnose {PACKAGE} --inputs {BATCH}\n", style="bold", soft_wrap=True)
    verdict = carried_out(DIAGNOSE, DiagnoseArguments(package=str(PACKAGE), inputs=str(BATCH)))
    assert isinstance(verdict, Verdict)
    print_result(verdict, as_json=False)
    return verdict


def main() -> int:
    console = Console(stderr=True, highlight=False)
    try:
        compile_ranker(console)
        verdict = diagnose_ranker(console)
    except ProblemError as problem:
        print_problem(problem)
        return Exit.PROBLEM
    console.print(f"\nTo go on with these files: {GO_ON}", style="bold", soft_wrap=True)
    return Exit.OK if verdict.category == EXPECTED else Exit.FAULT


if __name__ == "__main__":
    sys.exit(main())
