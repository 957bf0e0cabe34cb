"""Errors of the host process: crashes, the heap, memory, files, limits, and the user's own script."""

from .kinds import BUILD_GUIDE, HANG_GUIDE, MAIN_GUIDE, MEMORY_GUIDE, Naming, Table


def _exit(codes: str) -> str:
    """A pattern for one of the exit statuses `codes`, as shells, Python and schedulers report it."""
    words = r"\brc[=:]\s?|(?:\bexit(?:ed)?(?: with)?(?: code| status)?|[Rr]eturn ?code|exitcode)\s?[ =:]\s?"
    return rf"(?P<exit>(?:{words})(?:{codes})\b)"


def _shell(what: str) -> str:
    """A pattern for the line in which a shell reports that a signal ended a command."""
    return (
        rf"(?:line \d+:\s+\d+|zsh:) (?P<detail>{what})\s+(?:\(core dumped\)\s*)?(?P<ran>[^\s|<>&;(][^|<>&;]*)"
    )


# Resources that the machine lacks. Matched before compile errors, which may only wrap one of these.
RESOURCES = Table("any")
CHECKS = Table("call")  # the program's own checks, and those of sanitizers
TABLE = Table("any")

RESOURCES.cause(
    "temp_directory",
    r"(?P<detail>Error generating temporary directory: .*|Failed to create (?:a )?(?:temp\w*|output) director\w+.*|No usable temporary directory found.*)",
    "environment",
    "The directory for temporary files (TMPDIR) is missing or cannot be written.",
    "RuntimeError: Error generating temporary directory: No such file or directory",
    stage="load",
    names=Naming("TMPDIR"),
    fix="set TMPDIR to a directory that exists and can be written",
)
RESOURCES.error(
    "host_out_of_memory",
    (
        r"(?P<detail>DefaultCPUAllocator: can't allocate memory): you tried to allocate (?P<bytes>\d+) bytes",
        r"(?P<detail>(?:^|\W)MemoryError|std::bad_alloc|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|Unable to allocate [\d.]+ \w+ for an array|oom-kill|Out of memory: Killed process|\[enforce fail at .*alloc_cpu)",
    ),
    "out_of_memory",
    "The host has no memory for the request.",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.",
    names=Naming("host memory", "{bytes} bytes requested"),
    fix="make the batch smaller, or give the process more memory",
)
RESOURCES.cause(
    "limit_signal",
    (
        r"(?P<detail>(?:CPU time|File size) limit exceeded(?: signal terminated program (?P<program>[\w+.-]+))?)",
        r"(?P<detail>\bSIGXCPU\b|\bSIGXFSZ\b|died with <Signals\.SIGX(?:CPU|FSZ): \d+>)",
    ),
    "environment",
    "A limit on processor time (RLIMIT_CPU) or on file size (RLIMIT_FSIZE) ended the process.",
    "g++: fatal error: CPU time limit exceeded signal terminated program cc1plus",
    names=Naming("{detail}"),
    fix="raise the limit (ulimit -t, ulimit -f) for the process and what it starts",
)
RESOURCES.error(
    "disk",
    r"(?P<detail>No space left on device|Disk quota exceeded|Read-only file system|Too many open files|File too large)",
    "environment",
    "A file could not be written or opened.",
    "OSError: [Errno 28] No space left on device: '/tmp/torchinductor'",
    names=Naming("{detail}"),
)
RESOURCES.cause(
    "compiler_refused",
    r"(?P<detail>Permission denied|Exec format error)[^\n]*?: '(?P<program>[^']*(?:g\+\+|gcc|clang|nvcc|ptxas|/ld)[^'/]*)'",
    "toolchain",
    "The compiler is a file that this machine cannot run.",
    "torch._inductor.exc.InductorError: OSError: [Errno 8] Exec format error: '/opt/cross/bin/g++'",
    names=Naming("{program}", "{detail}"),
)
RESOURCES.cause(
    "program_missing",
    r"InductorError: FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<program>(?!g\+\+|gcc|clang|nvcc|ptxas|ld)[\w+-]+)'$",
    "environment",
    "A program that the compile starts by its bare name is not in any directory of PATH.",
    "torch._inductor.exc.InductorError: FileNotFoundError: [Errno 2] No such file or directory: 'openssl'",
    names=Naming("{program}", "not on the PATH", kind="environment"),
    fix="install {program}, or put its directory into PATH",
)
RESOURCES.error(
    "permission",
    r"(?P<detail>PermissionError|Permission denied|Operation not permitted(?! when))(?:.*?: '(?P<path>[^']+)')?",
    "environment",
    "Access to a file or device was denied.",
    "PermissionError: [Errno 13] Permission denied: '/cache/x'",
    names=(Naming("{path}"), Naming("{detail}")),
)
RESOURCES.error(
    "bad_path",
    (
        r"(?P<detail>NotADirectoryError|\[Errno 20\] Not a directory|IsADirectoryError|FileExistsError|\[Errno 36\] File name too long)(?:.*?: '(?P<path>[^']+)')?",
        r"(?P<detail>Stale file handle|Transport endpoint is not connected|\[Errno 5\] Input/output error)(?:.*?: '(?P<path>[^']+)')?",
        r"(?P<detail>can't start new thread|\[Errno 11\] Resource temporarily unavailable)",
        r"(?P<detail>libgomp: Thread creation failed|OMP: Error #34|pthread_create failed)(?:: (?P<why>.*))?",
    ),
    "environment",
    "The operating system denied a directory, a file or a thread.",
    "NotADirectoryError: [Errno 20] Not a directory: '/cache/inductor'",
    names=(Naming("{path}", "{detail}"), Naming("{detail}")),
)
RESOURCES.error(
    "network",
    r"(?P<detail>Connection(?:Refused|Reset|Aborted)Error|Connection refused|Connection reset by peer|Name or service not known|Temporary failure in name resolution|Network is unreachable|No route to host|Address already in use)",
    "environment",
    "A host or port cannot be reached or used.",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    names=Naming("network", "{detail}"),
)
RESOURCES.error(
    "environment_variable",
    (),
    "environment",
    "A variable that the program reads is not in its environment.",
    "KeyError: 'MODEL_DIR'",
    names=Naming("{variable}", "not set"),
)

CHECKS.error(
    "tensors_not_close",
    (
        r"(?P<detail>(?:Tensor-likes|Scalars|Sequences?|Tensors) are not (?:close|equal)!?)",
        r"(?P<detail>The values for attribute '\w+' do not match: [^\n]*)",
    ),
    ("wrong_output", "input_mismatch", "custom_op", "constants", "shape_out_of_range", "nan_or_inf"),
    "The program's own comparison failed: the package's numbers differ from the reference.",
    "AssertionError: Tensor-likes are not close!",
    not_proven="That code generation is wrong: a silent out-of-bounds access, a wrong stride, dtype or size "
    "of an input, stale weights, a wrong fake function or arguments fixed at export also give "
    "wrong numbers.",
    tags="result_check",
)
CHECKS.error(
    "not_close_nan",
    r"Greatest (?:absolute|relative) difference: (?P<difference>nan|inf)\b",
    ("nan_or_inf", "wrong_output"),
    "The differing values are not finite.",
    "Greatest absolute difference: nan at index (0, 1) (up to 1e-05 allowed)",
    tags="nan",
)
CHECKS.error(
    "script_says_nan",
    r"(?:Error|Exception|assert\w*|FAIL\w*)\b[^\n]*?(?<![\w.])(?P<value>[Nn]a[Nn]s?|NAN|[Ii]nf|non-?finite|not finite)(?![\w.])",
    ("nan_or_inf", "wrong_output"),
    "The program's own check found a value that is not finite.",
    "AssertionError: class probabilities do not sum to one: [nan, nan]",
    tags=("nan", "open_refusal"),
)
CHECKS.cause(
    "address_sanitizer",
    (
        r"AddressSanitizer: (?P<kind>heap-buffer-overflow|stack-buffer-overflow|global-buffer-overflow|heap-use-after-free|use-after-poison|container-overflow|attempting double-free|attempting free|SEGV|BUS|FPE|stack-overflow|negative-size-param|memcpy-param-overlap)(?P<detail>.*)",
        r"runtime error: (?P<detail>(?:index .* out of bounds|load of|store to|signed integer overflow|division by zero|null pointer|misaligned|member|applying|shift|.*not a valid value).*)",
    ),
    ("illegal_memory_access", "index_out_of_bounds", "input_mismatch", "custom_op"),
    "A sanitizer build found a bad memory access or undefined behaviour.",
    "==123==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x602000000034 at pc 0x7f bp 0x7f sp 0x7f",
)
CHECKS.cause(
    "sanitizer_access",
    (),
    (
        *("illegal_memory_access", "index_out_of_bounds", "device_mismatch", "custom_op"),
        *("input_mismatch", "shape_out_of_range"),
    ),
    "compute-sanitizer saw a kernel access memory that is not its own, at this instruction.",
    "========= Invalid __global__ read of size 4 bytes",
    not_proven="That the kernel is at fault: a bad index, a wrong size or a host pointer may have been "
    "given to it. The nearest allocation is a neighbour, and not always the intended tensor.",
    sentence="{kernel} did an invalid {direction} of {size} bytes at {file}:{line}.",
    sites=("invalid_access", "misaligned", "exception"),
)
CHECKS.cause(
    "sanitizer_race",
    (),
    ("concurrency", "wrong_output"),
    "compute-sanitizer saw a race between threads, or a barrier used incorrectly.",
    "========= Error: Race reported between Write access at k+0x70 in f.py:12",
    guide=MEMORY_GUIDE,
    sites=("race", "barrier"),
)
CHECKS.cause(
    "sanitizer_uninitialised",
    (),
    ("wrong_output", "nan_or_inf", "custom_op"),
    "compute-sanitizer saw a kernel read memory that nothing had written.",
    "========= Uninitialized __global__ memory read of size 4 bytes",
    advice="locate",
    sites="uninitialised",
)
TABLE.error(
    "illegal_instruction",
    (_shell("Illegal instruction"), r"(?P<detail>[Ii]llegal instruction|SIGILL)", _exit("132|-4")),
    "arch_mismatch",
    "The CPU does not know an instruction of the package (or of a library): it was compiled for another ISA.",
    "Illegal instruction (core dumped)",
    tags=("ending", "crash"),
)
TABLE.symptom(
    "heap_corruption",
    r"(?P<detail>free\(\): (?:invalid|corrupted|double free)[\w ()]*|(?:malloc|realloc|munmap_chunk|malloc_consolidate|calloc)\(\): [\w ()-]+|double free or corruption[\w ()!]*|corrupted (?:size vs\. prev_size|double-linked list|unsorted chunks)[\w ]*|\*\*\* stack smashing detected \*\*\*|sysmalloc: Assertion|largebin)",
    ("constants", "custom_op", "shape_out_of_range", "input_mismatch", "illegal_memory_access"),
    "Something wrote past the end of a heap block; the C library noticed it later, so the code at the place "
    "of the abort is not at fault.",
    "free(): corrupted unsorted chunks",
    advice="heap",
    guide=MEMORY_GUIDE,
    not_proven="Who wrote it: `load_constants` with another dtype or size, a wrong fake function, a size beyond the range and a wrong input all end this way.",
    tags=("ending", "crash", "native_stack", "stageless"),
)
TABLE.symptom(
    "segfault",
    (
        _shell("[Ss]egmentation fault|[Bb]us error"),
        r"(?P<detail>Fatal Python error: (?:Segmentation fault|Bus error)|[Ss]egmentation fault|SIGSEGV|SIGBUS|[Bb]us error)",
        _exit("139|-11"),
    ),
    ("device_mismatch", "constants", "input_mismatch", "custom_op", "illegal_memory_access", "toolchain"),
    "The process read or wrote an address that it does not own.",
    "Fatal Python error: Segmentation fault",
    advice="locate",
    guide=MEMORY_GUIDE,
    not_proven="Whether an input, weights that were never loaded (often, on the first call), a library (at load of a CUDA package: a wrapper linked against a static libstdc++) or generated code is at fault.",
    tags=("ending", "crash", "native_stack", "stageless"),
)
TABLE.symptom(
    "terminate_recursively",
    r"terminate called recursively",
    ("index_out_of_bounds", "input_mismatch"),
    "Two OpenMP threads failed at once: an assertion of a parallel CPU kernel whose text was lost.",
    "terminate called recursively",
    advice="run_again",
    not_proven="Which assertion failed. A run with OMP_NUM_THREADS=1 prints its text.",
    tags="ending",
)
TABLE.error(
    "terminate_without_exception",
    r"terminate called without an active exception",
    "script_error",
    "The program destroyed a std::thread that it had neither joined nor detached, or rethrew without an exception.",
    "terminate called without an active exception",
    not_proven="Which thread it was. In a core file, the frame below std::terminate destroyed it.",
    guide=HANG_GUIDE,
    fix="join each thread before its std::thread is destroyed, also while the program shuts down",
    tags=("ending", "native_stack"),
)
TABLE.generic(
    "terminate",
    r"terminate called after throwing an instance of '(?P<type>[^']+)'",
    ("index_out_of_bounds", "illegal_memory_access"),
    "A C++ exception was not caught; its text is on the next line.",
    "terminate called after throwing an instance of 'c10::Error'",
    advice="read_cause",
    guide=MAIN_GUIDE,
    tags=("ending", "native_stack", "stageless"),
)
TABLE.generic(
    "aborted",
    (
        _shell("Aborted|abort"),
        r"(?P<detail>Fatal Python error: Aborted|(?:^|\s)Aborted(?:\s*\(core dumped\))?\s*$|SIGABRT)",
        _exit("134|-6"),
    ),
    ("index_out_of_bounds", "constants", "illegal_memory_access"),
    "The process stopped itself; the reason was printed before.",
    "Aborted (core dumped)",
    advice="run_again",
    guide=MAIN_GUIDE,
    tags=("ending", "crash", "native_stack", "stageless"),
)
TABLE.symptom(
    "killed",
    (_shell("[Kk]illed"), r"(?P<detail>(?:^|\s)Killed\s*$|SIGKILL|signal 9\b)", _exit("137|-9")),
    ("out_of_memory", "hang"),
    "The process was killed from outside, by the kernel's out-of-memory killer or a time limit.",
    "Killed",
    not_proven="Which of the two.",
    tags=("ending", "stageless"),
)
TABLE.error(
    "timeout",
    (
        r"(?P<detail>TimeoutExpired|TimeoutError|timed out after (?P<seconds>[\d.]+) seconds|DUE TO TIME LIMIT|Timeout \((?P<limit>[\d:.]+)\)!|deadlock|Operation timed out)",
        _exit("124"),
    ),
    ("hang", "concurrency"),
    "A program, call or wait did not end within its time limit.",
    "subprocess.TimeoutExpired: Command '['python', 'serve.py']' timed out after 60 seconds",
    not_proven="That it never ends: a first compile can take a minute.",
)
TABLE.cause(
    "compile_timeout",
    r"Inductor compile-worker future for '(?P<kernel>\w+)'",
    ("hang", "compile_failure"),
    "The compile of a kernel did not end within the time that Inductor gives a worker.",
    "RuntimeError: Inductor compile-worker future for 'triton_per_fused_sort_0'",
    advice="recompile",
    guide=BUILD_GUIDE,
    stage="compile",
)
TABLE.consequence(
    "queue_timeout",
    r"^(?P<detail>_?queue\.(?:Empty|Full))\b",
    ("hang", "concurrency"),
    "A queue stayed empty or full for the whole time limit: the thread or process that should serve it did "
    "not.",
    "_queue.Empty",
    not_proven="Whether the other side died, hangs or is slow: look for an exception of a thread or process earlier in the log.",
)
TABLE.cause(
    "main_guard",
    r"An attempt has been made to start a new process before the",
    "script_error",
    "The script starts processes while it is being imported: the code to run must be under `if __name__ == "
    "'__main__'`.",
    "        An attempt has been made to start a new process before the",
    guide=HANG_GUIDE,
)
TABLE.error(
    "module_missing",
    r"(?:ModuleNotFoundError: )?No module named '(?P<module>[\w.]+)'",
    ("script_error", "environment"),
    "A Python module is not installed in this interpreter.",
    "ModuleNotFoundError: No module named 'fastparquet'",
    guide=BUILD_GUIDE,
    names=Naming("module {module}", kind="environment"),
    fix="install {module} in this interpreter, or use the one that has it (`python`)",
)
TABLE.consequence(
    "child_failed",
    (
        r"(?P<detail>CalledProcessError): Command (?P<command>.*?) (?:returned non-zero exit status (?P<status>-?\d+)|died with <Signals\.(?P<signal>\w+): \d+>)",
        r"(?P<detail>ProcessRaisedException|ChildFailedError|ProcessExitedException|BrokenProcessPool|worker \d+ died)(?P<more>.*)",
        r"process \d+ terminated with (?P<signal>signal \w+|exit code \d+)",
    ),
    ("script_error", "environment", "out_of_memory"),
    "A child process failed; its own error is elsewhere in the output.",
    "subprocess.CalledProcessError: Command '['python', 'x.py']' returned non-zero exit status 1.",
    advice="read_cause",
    tags=("own_report", "ending"),
)
TABLE.error(
    "unsafe_pickle",
    r"(?P<detail>Weights only load failed|Unsupported global: GLOBAL (?P<name>\S+)|UnpicklingError)",
    ("script_error", "invalid_package"),
    "A file contains more than tensors, or is not a file of tensors.",
    "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded",
    guide=BUILD_GUIDE,
)

TABLE.error(
    "own_check",
    (),
    ("wrong_output", "input_mismatch", "concurrency", "script_error", "nan_or_inf"),
    "The program's own check (a `raise` or `assert` of the script) failed; nothing of AOTInductor reported a fault.",
    "RuntimeError: 32 labels for 29 images",
    not_proven="Whether the package returned wrong values, or the script passed or read values wrongly.",
    fix="look at what the check compares the results with, and how that is produced",
    tags=("own_report", "result_check"),
)
TABLE.error(
    "script_exception",
    (),
    "script_error",
    "A statement of the script failed, outside torch.",
    "KeyError: 'price'",
    tags=("open_refusal", "unclassified"),
)
TABLE.error(
    "compiler_exception",
    (),
    "compile_failure",
    "The export or the compile failed.",
    "AttributeError: 'float' object has no attribute 'node'",
    stage="compile",
)
TABLE.symptom(
    "python_exception",
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout))(?:: (?P<detail>.*))?$",
    ("script_error", "wrong_output", "compile_failure"),
    "The program ended with a Python exception.",
    "ValueError: not enough values to unpack (expected 3, got 2)",
    advice="run_again",
    tags="unclassified",
)

TABLE.consequence(
    "cpp_exception",
    r"what\(\):\s+(?P<detail>\S.*)",
    ("input_mismatch", "invalid_package", "environment", "script_error"),
    "A C++ exception was not caught.",
    "  what():  bad optional access",
    advice="run_again",
    guide=MAIN_GUIDE,
    not_proven="Who threw the exception: libtorch, the package or the program itself.",
)
# This row is the last one, because the text of the operator's error may belong to a more specific family.
TABLE.error(
    "shim_exception",
    r"Exception in aoti_torch: (?P<detail>.+)",
    ("input_mismatch", "shape_out_of_range", "custom_op", "index_out_of_bounds"),
    "An operator that the generated code called raised an error. If the caller does not check it, this line "
    "is the only sign.",
    "[E1121 06:44:01.0 shim_common.cpp:271] Exception in aoti_torch: mat1 must be a matrix, got 1-D tensor",
    stage="call",
    torch="<=2.12",
    not_proven="Whether the call ended there: up to 2.12 the package continues after an error of a custom "
    "operator.",
)
