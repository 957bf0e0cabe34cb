"""What a step of a job is called while it runs: words of its user's, not the name of its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# A script compiles before it calls; any other program does not.
COMPILES = ", its compile included"
# By the name of the step's folder, without a number at its end.
WORDS = {
    "capture": "running {program}" + COMPILES,
    "plain": "making the call once",
    "checked": "making the call with all checks on",
    "repeats": "making the call again, to see whether it varies",
    "repeat": "making the call again, to see whether it varies",
    "run": "making the call",
    "with": "making the call with the change",
    "again": "making the call without the change again",
    "replay": "making the recorded call again",
    "rebuild-inputs": "reading the inputs of the recorded call",
    "describe-inputs": "reading the inputs",
    "describe-files": "reading tensors",
    "index-values": "looking at the indices in the inputs",
    "observe": "looking at what every kernel reads and writes",
    "interpret": "computing the kernel's values by its source",
    "time-call": "timing the call, as it is and changed in turns",
    "time-load": "timing the load",
    "time-build": "timing the build",
    "build": "timing the build",
    "compile-forwarders": "compiling timers for each kernel",
    "schemas": "reading the operators that the package calls",
    "verify": "running the package and the program",
    "reference": "running eager mode",
    "compare-launches": "comparing each kernel with eager mode",
    "intervene": "testing what removes the failure",
    "operators": "reading the operators of the program",
    "compile": "compiling the model",
    "toolchain": "asking the compiler for its libraries",
    "compile-wrapper": "instrumenting the package (compiling)",
    "compile-runtime": "instrumenting the package (compiling)",
    "compile-regex": "instrumenting the package (compiling)",
    "compile-kernels": "instrumenting the package (compiling)",
    "compile-kernel": "compiling the changed kernel",
    "link": "instrumenting the package (linking)",
    "link-kernel": "compiling the changed kernel",
    "recompile-triton": "compiling the changed kernel",
    "compile-recorder": "compiling the recorder",
    "probe": "asking Python for torch and GPUs",
    "compiler": "testing the C++ compiler",
    "native": "running under native checks",
    "asan": "running under AddressSanitizer",
    "ubsan": "running under UndefinedBehaviorSanitizer",
    "memcheck": "running under compute-sanitizer (memcheck)",
    "initcheck": "running under compute-sanitizer (initcheck)",
    "racecheck": "running under compute-sanitizer (racecheck)",
    "synccheck": "running under compute-sanitizer (synccheck)",
    "sync": "running with a wait after each kernel",
    "core-dump": "running until it dumps a core",
    "attempt": "compiling the program and calling it once",
    "record": "computing the values of the program in eager mode",
    "cut": "cutting the program down",
    "trial": "trying a smaller program",
    "reproduction-run": "running the reproduction",
}


def in_words(step: str, argv: Sequence[str] = ()) -> str:
    """The line for a step named `step` that starts `argv`; the name itself for one that is not known."""
    name = step.replace("_", "-").rstrip("0123456789").rstrip("-")
    program = _program(argv)
    words = WORDS.get(name, name.replace("-", " ")).format(program=program)
    return words if program.endswith(".py") else words.removesuffix(COMPILES)


def _program(argv: Sequence[str]) -> str:
    """The script that a command runs, else its program."""
    script = next((word for word in argv[1:] if word.endswith(".py")), argv[0] if argv else "the program")
    return Path(script).name
