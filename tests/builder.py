"""Compiles the tests' models in forks of a process that has imported torch's compiler.

The import takes longer than exporting a small model. `python -m tests.builder` reads requests from standard
input, each a line of JSON: a module, its arguments, and a file for the output. It runs each like
`python -m MODULE ARGUMENTS`, or like `python -c CODE ARGUMENTS` if the module is `-c`. It answers with a
line, the exit status, and ends when its input ends.
"""

import contextlib
import importlib
import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

# Modules that a compile imports late in torch 2.13. Another version may not have all of them.
LATE = (
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cpp_wrapper_gpu",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.mps",
    "torch._inductor.fx_passes.freezing_patterns",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.package",
    "torch.export._trace",
    "torch.fx.experimental.validator",
    "torch.utils.cpp_extension",
)


class Builder:
    """The process that compiles, as the tests use it."""

    def __init__(self, environment: Mapping[str, str], directory: Path) -> None:
        argv = [sys.executable, "-W", "ignore", "-m", "tests.builder"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            argv, env=environment, cwd=directory, stdin=pipe, stdout=pipe, text=True, bufsize=1
        )

    def run(self, module: str, words: tuple[str, ...], printed: Path) -> int:
        """The exit status of `python -m MODULE WORDS`, whose output goes into `printed`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([module, words, str(printed)]) + "\n")
        return int(self._process.stdout.readline())

    def end(self) -> None:
        """Close its input and wait for its end, unless it has ended."""
        if self._process.returncode is None:
            self._process.communicate()


def forked(module: str, words: list[str], printed: str) -> int:
    """Run the module in a fork of this process, and wait for its exit status."""
    child = os.fork()
    if child == 0:
        _become(module, words, printed)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _become(module: str, words: list[str], printed: str) -> None:
    """End this process as the module would end. Never returns."""
    status = 1
    try:
        nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(printed, os.O_WRONLY | os.O_CREAT)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        if module == "-c":
            sys.argv = [module, *words[1:]]
            exec(compile(words[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = [module, *words]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        if module == "-c":
            sys.exit(status)  # runs what libraries do at the end of a process
        os._exit(status)


def requests() -> Iterator[tuple[str, list[str], str]]:
    for line in sys.stdin:
        module, words, printed = json.loads(line)
        yield module, words, printed


def main() -> None:
    for name in LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for request in requests():
        print(forked(*request), flush=True)


if __name__ == "__main__":
    main()
