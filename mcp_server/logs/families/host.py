"""Errors of the host process: crashes, the heap, memory, files, limits, and the user's own script."""

from __future__ import annotations

from mcp_server.model import Category

from .kinds import (
    BUILD_GUIDE,
    HANG_GUIDE,
    INDEX_GUIDE,
    MEMORY_GUIDE,
    NAN_GUIDE,
    Defaults,
    Family,
    Naming,
    Rank,
)


def _exit(codes: str) -> str:
    """A pattern for an exit status as shells, Python and schedulers report it."""
    return rf"(?P<exit>(?:\brc|\bexit(?:ed)?(?: with)?(?: code| status)?|[Rr]eturn ?code|exitcode)\s?[ =:]\s?(?:{codes})\b)"


def _shell(what: str) -> str:
    """A pattern for what a shell says of a program that a signal ended, with its command."""
    return (
        rf"(?:line \d+:\s+\d+|zsh:) (?P<detail>{what})\s+(?:\(core dumped\)\s*)?(?P<ran>[^\s|<>&;(][^|<>&;]*)"
    )


_EXIT_HINTS = ("rc=", "rc: ", "exit", "eturn code", "eturncode")

_table = Defaults(stage="any")
_add = _table.add

_CRASH: tuple[Category, ...] = (
    "device_mismatch",
    "constants",
    "input_mismatch",
    "custom_op",
    "illegal_memory_access",
    "toolchain",
)

_add(
    "tensors_not_close",
    r"(?P<detail>(?:Tensor-likes|Scalars|Sequences?|Tensors) are not (?:close|equal)!?)",
    ("are not close", "are not equal"),
    ("wrong_output", "input_mismatch", "custom_op", "constants", "shape_out_of_range", "nan_or_inf"),
    "The program's own comparison failed: the package's numbers differ from the reference.",
    "AssertionError: Tensor-likes are not close!",
    stage="call",
    guide=NAN_GUIDE,
    advice="compare",
    not_proven="That code generation is wrong: a silent out-of-bounds access, a wrong stride, dtype or size of an input, "
    "stale weights, a wrong fake function or baked-in arguments also give wrong numbers.",
    tags="result_check",
)
_add(
    "not_close_nan",
    r"Greatest (?:absolute|relative) difference: (?P<difference>nan|inf)\b",
    "difference: ",
    ("nan_or_inf", "wrong_output"),
    "The differing values are not finite.",
    "Greatest absolute difference: nan at index (0, 1) (up to 1e-05 allowed)",
    stage="call",
    guide=NAN_GUIDE,
    advice="find_nan",
    tags="nan",
)
_add(
    "script_says_nan",
    r"(?:Error|Exception|assert\w*|FAIL\w*)\b[^\n]*?(?<![\w.])(?P<value>[Nn]a[Nn]s?|NAN|[Ii]nf|non-?finite|not finite)(?![\w.])",
    ("nan", "NaN", "NAN", "inf", "Inf", "finite"),
    ("nan_or_inf", "wrong_output"),
    "The program's own check met a value that is not finite.",
    "AssertionError: class probabilities do not sum to one: [nan, nan]",
    stage="call",
    guide=NAN_GUIDE,
    advice="find_nan",
    tags=("nan", "open_refusal"),
)
_add(
    "address_sanitizer",
    (
        r"AddressSanitizer: (?P<kind>heap-buffer-overflow|stack-buffer-overflow|global-buffer-overflow|heap-use-after-free|use-after-poison|container-overflow|attempting double-free|attempting free|SEGV|BUS|FPE|stack-overflow|negative-size-param|memcpy-param-overlap)(?P<detail>.*)",
        r"runtime error: (?P<detail>(?:index .* out of bounds|load of|store to|signed integer overflow|division by zero|null pointer|misaligned|member|applying|shift|.*not a valid value).*)",
    ),
    ("AddressSanitizer: ", "runtime error: "),
    ("illegal_memory_access", "index_out_of_bounds", "input_mismatch", "custom_op"),
    "A sanitizer build met a bad memory access or undefined behaviour.",
    "==123==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x602000000034 at pc 0x7f bp 0x7f sp 0x7f",
    stage="call",
    rank=Rank.CAUSE,
    guide=MEMORY_GUIDE,
    advice="locate",
)
_add(
    "sanitizer_access",
    (),
    (),
    (
        "illegal_memory_access",
        "index_out_of_bounds",
        "device_mismatch",
        "custom_op",
        "input_mismatch",
        "shape_out_of_range",
    ),
    "compute-sanitizer saw a kernel access memory that is not its own, at this instruction.",
    "========= Invalid __global__ read of size 4 bytes",
    stage="call",
    rank=Rank.CAUSE,
    guide=MEMORY_GUIDE,
    advice="locate",
    not_proven="That the kernel is at fault: a bad index, a wrong size or a host pointer may have been given to it. "
    "The nearest allocation is a neighbour, not always the tensor that was meant.",
    sentence="{kernel} did an invalid {direction} of {size} bytes at {file}:{line}.",
    sites=("invalid_access", "exception"),
)
_add(
    "sanitizer_race",
    (),
    (),
    ("concurrency", "wrong_output"),
    "compute-sanitizer saw threads race or meet at a barrier in an illegal way.",
    "========= Error: Race reported between Write access at k+0x70 in f.py:12",
    stage="call",
    rank=Rank.CAUSE,
    guide=MEMORY_GUIDE,
    advice="locate",
    sites=("race", "barrier"),
)
_add(
    "sanitizer_uninitialised",
    (),
    (),
    ("wrong_output", "nan_or_inf", "custom_op"),
    "compute-sanitizer saw a kernel read memory that nothing had written.",
    "========= Uninitialized __global__ memory read of size 4 bytes",
    stage="call",
    rank=Rank.CAUSE,
    guide=NAN_GUIDE,
    advice="locate",
    sites="uninitialised",
)
_add(
    "leak_sanitizer",
    r"LeakSanitizer: detected memory leaks",
    "LeakSanitizer",
    ("illegal_memory_access",),
    "Memory was not freed at exit; not a fault of the call.",
    "==1==ERROR: LeakSanitizer: detected memory leaks",
    stage="teardown",
    rank=Rank.NOISE,
    guide=MEMORY_GUIDE,
)
_add(
    "illegal_instruction",
    (_shell("Illegal instruction"), r"(?P<detail>[Ii]llegal instruction|SIGILL)", _exit("132|-4")),
    ("llegal instruction", "SIGILL", *_EXIT_HINTS),
    "arch_mismatch",
    "The CPU does not know an instruction of the package (or of a library): it was compiled for another ISA.",
    "Illegal instruction (core dumped)",
    advice="check_package",
    guide=BUILD_GUIDE,
    tags=("ending", "crash"),
)
_add(
    "heap_corruption",
    r"(?P<detail>free\(\): (?:invalid|corrupted|double free)[\w ()]*|(?:malloc|realloc|munmap_chunk|malloc_consolidate|calloc)\(\): [\w ()-]+|double free or corruption[\w ()!]*|corrupted (?:size vs\. prev_size|double-linked list|unsorted chunks)[\w ]*|\*\*\* stack smashing detected \*\*\*|sysmalloc: Assertion|largebin)",
    (
        "free(): ",
        "alloc(): ",
        "chunk(): ",
        "consolidate(): ",
        "double free or",
        "corrupted ",
        "stack smashing",
        "sysmalloc",
    ),
    ("constants", "custom_op", "shape_out_of_range", "input_mismatch", "illegal_memory_access"),
    "Something wrote past the end of a heap block; the C library noticed later, so the place of the abort is not the culprit.",
    "free(): corrupted unsorted chunks",
    rank=Rank.SYMPTOM,
    guide=MEMORY_GUIDE,
    advice="locate",
    tags=("ending", "crash", "native_stack", "stageless"),
)
_add(
    "segfault",
    (
        _shell("[Ss]egmentation fault|[Bb]us error"),
        r"(?P<detail>Fatal Python error: (?:Segmentation fault|Bus error)|[Ss]egmentation fault|SIGSEGV|SIGBUS|[Bb]us error)",
        _exit("139|-11"),
    ),
    ("egmentation fault", "SIGSEGV", "SIGBUS", "us error", *_EXIT_HINTS),
    _CRASH,
    "The process read or wrote an address that it does not own.",
    "Fatal Python error: Segmentation fault",
    rank=Rank.SYMPTOM,
    guide=MEMORY_GUIDE,
    advice="locate",
    not_proven="Whether an input, a weight that was never loaded, a library or generated code is at fault.",
    tags=("ending", "crash", "native_stack", "stageless"),
)
_add(
    "terminate_recursively",
    r"terminate called recursively",
    "terminate called recursively",
    ("index_out_of_bounds", "input_mismatch"),
    "Two OpenMP threads failed at once: an assertion of a parallel CPU kernel whose text was lost.",
    "terminate called recursively",
    rank=Rank.SYMPTOM,
    advice="run_again",
    guide=INDEX_GUIDE,
    tags="ending",
)
_add(
    "terminate",
    r"terminate called (?:after throwing an instance of '(?P<type>[^']+)'|without an active exception)",
    "terminate called",
    ("index_out_of_bounds", "illegal_memory_access"),
    "A C++ exception was not caught; its text is on the next line.",
    "terminate called after throwing an instance of 'c10::Error'",
    rank=Rank.GENERIC,
    advice="read_cause",
    tags=("ending", "native_stack", "stageless"),
)
_add(
    "aborted",
    (
        _shell("Aborted|abort"),
        r"(?P<detail>Fatal Python error: Aborted|(?:^|\s)Aborted(?:\s*\(core dumped\))?\s*$|SIGABRT)",
        _exit("134|-6"),
    ),
    ("Aborted", "SIGABRT", "zsh: abort", *_EXIT_HINTS),
    ("index_out_of_bounds", "constants", "illegal_memory_access"),
    "The process stopped itself; the reason was printed before.",
    "Aborted (core dumped)",
    rank=Rank.GENERIC,
    advice="run_again",
    tags=("ending", "crash", "native_stack", "stageless"),
)
_add(
    "killed",
    (_shell("[Kk]illed"), r"(?P<detail>(?:^|\s)Killed\s*$|SIGKILL|signal 9\b)", _exit("137|-9")),
    ("Killed", "SIGKILL", "signal 9", "zsh: killed", *_EXIT_HINTS),
    ("out_of_memory", "hang"),
    "The process was killed from outside: the kernel's memory killer, or a time limit.",
    "Killed",
    rank=Rank.SYMPTOM,
    advice="check_machine",
    not_proven="Which of the two.",
    guide=BUILD_GUIDE,
    tags=("ending", "stageless"),
)
_add(
    "timeout",
    (
        r"(?P<detail>TimeoutExpired|TimeoutError|timed out after (?P<seconds>[\d.]+) seconds|DUE TO TIME LIMIT|Timeout \((?P<limit>[\d:.]+)\)!|deadlock|Operation timed out)",
        _exit("124"),
    ),
    (
        "imeoutExpired",
        "imeoutError",
        "timed out",
        "TIME LIMIT",
        "Timeout (",
        "deadlock",
        *_EXIT_HINTS,
    ),
    ("hang", "concurrency"),
    "Something did not end within its time limit.",
    "subprocess.TimeoutExpired: Command '['python', 'serve.py']' timed out after 60 seconds",
    advice="trace_hang",
    not_proven="That it never ends: a first compile can take a minute.",
    guide=HANG_GUIDE,
)
_add(
    "compile_timeout",
    r"Inductor compile-worker future for '(?P<kernel>\w+)'",
    "compile-worker future for",
    ("hang", "compile_failure"),
    "The compile of a kernel did not end within the time that Inductor gives a worker.",
    "RuntimeError: Inductor compile-worker future for 'triton_per_fused_sort_0'",
    stage="compile",
    rank=Rank.CAUSE,
    advice="recompile",
    guide=BUILD_GUIDE,
)
_add(
    "queue_timeout",
    r"^(?P<detail>_?queue\.(?:Empty|Full))\b",
    "queue.",
    ("hang", "concurrency"),
    "A queue had nothing to give, or no room, within the time: what should have served it did not.",
    "_queue.Empty",
    rank=Rank.CONSEQUENCE,
    advice="trace_hang",
    not_proven="Whether the other side died, hangs or is slow: look for an exception of a thread or process before this.",
    guide=HANG_GUIDE,
)
_add(
    "main_guard",
    r"An attempt has been made to start a new process before the",
    "An attempt has been made to start",
    "script_error",
    "The script starts processes while it is being imported: what runs must stand below `if __name__ == '__main__'`.",
    "        An attempt has been made to start a new process before the",
    rank=Rank.CAUSE,
    advice="fix_script",
    guide=HANG_GUIDE,
)
_add(
    "module_missing",
    r"(?:ModuleNotFoundError: )?No module named '(?P<module>[\w.]+)'",
    "No module named",
    ("script_error", "environment"),
    "A Python module is not installed in this interpreter.",
    "ModuleNotFoundError: No module named 'fastparquet'",
    advice="fix_script",
    guide=BUILD_GUIDE,
    names=Naming("module {module}", kind="environment"),
)
_add(
    "child_failed",
    (
        r"(?P<detail>CalledProcessError): Command (?P<command>.*?) (?:returned non-zero exit status (?P<status>-?\d+)|died with <Signals\.(?P<signal>\w+): \d+>)",
        r"(?P<detail>ProcessRaisedException|ChildFailedError|ProcessExitedException|BrokenProcessPool|worker \d+ died)(?P<more>.*)",
        r"process \d+ terminated with (?P<signal>signal \w+|exit code \d+)",
    ),
    (
        "CalledProcessError",
        "ProcessRaised",
        "ChildFailedError",
        "ProcessExited",
        "BrokenProcessPool",
        "terminated with",
    ),
    ("script_error", "environment", "out_of_memory"),
    "A child process failed; its own error is elsewhere in the output.",
    "subprocess.CalledProcessError: Command '['python', 'x.py']' returned non-zero exit status 1.",
    rank=Rank.CONSEQUENCE,
    advice="read_cause",
    tags=("own_report", "ending"),
)
_add(
    "unsafe_pickle",
    r"(?P<detail>Weights only load failed|Unsupported global: GLOBAL (?P<name>\S+)|UnpicklingError)",
    ("Weights only load", "Unsupported global", "UnpicklingError"),
    ("script_error", "invalid_package"),
    "A file holds more than tensors, or is not a file of tensors.",
    "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded",
    advice="fix_script",
    guide=BUILD_GUIDE,
)

_add(
    "own_check",
    (),
    (),
    ("wrong_output", "input_mismatch", "concurrency", "script_error", "nan_or_inf"),
    "The program's own check (a `raise` or `assert` of the script) failed; nothing of AOTInductor reported a fault.",
    "RuntimeError: 32 labels for 29 images",
    guide=NAN_GUIDE,
    advice="compare",
    not_proven="Whether the package returned wrong values or the script fed or read them wrongly.",
    fix="see what the check compares the results with, and how that is made",
    tags=("own_report", "result_check"),
)
_add(
    "script_exception",
    (),
    (),
    "script_error",
    "A statement of the script failed, outside torch.",
    "KeyError: 'price'",
    advice="fix_script",
    tags=("open_refusal", "unclassified"),
)
_add(
    "compiler_exception",
    (),
    (),
    "compile_failure",
    "Export or Inductor failed with an error that has no family of its own.",
    "AttributeError: 'float' object has no attribute 'node'",
    stage="compile",
    advice="recompile",
    guide=BUILD_GUIDE,
)
_add(
    "python_exception",
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout))(?:: (?P<detail>.*))?$",
    ("Error", "Exception", "Interrupt", "Exit", "Failure", "Timeout"),
    ("script_error", "wrong_output", "compile_failure"),
    "A Python exception that has no family of its own.",
    "ValueError: not enough values to unpack (expected 3, got 2)",
    rank=Rank.SYMPTOM,
    advice="run_again",
    tags="unclassified",
)

_add(
    "cpp_exception",
    r"what\(\):\s+(?P<detail>\S.*)",
    "what():",
    ("input_mismatch", "invalid_package", "environment", "script_error"),
    "A C++ exception that has no family of its own was not caught.",
    "  what():  bad optional access",
    rank=Rank.CONSEQUENCE,
    advice="run_again",
    not_proven="Who threw it: libtorch, the package or the program itself.",
)

FAMILIES: tuple[Family, ...] = tuple(_table.rows)
