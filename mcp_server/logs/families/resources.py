"""Errors of memory, files and directories: what a machine refuses, whoever asks for it.

They come before the families of compilation: a compiler's error that wraps one of these is the machine's fault.
"""

from __future__ import annotations

from .kinds import Naming, Table

TABLE = Table("any")

TABLE.cause(
    "temp_directory",
    r"(?P<detail>Error generating temporary directory: .*|Failed to create (?:a )?(?:temp\w*|output) director\w+.*|No usable temporary directory found.*)",
    "environment",
    "The directory for temporary files (TMPDIR) is missing or cannot be written.",
    "RuntimeError: Error generating temporary directory: No such file or directory",
    stage="load",
    names=Naming("TMPDIR"),
    fix="set TMPDIR to a directory that exists and can be written",
)
TABLE.error(
    "host_out_of_memory",
    (
        r"(?P<detail>DefaultCPUAllocator: can't allocate memory): you tried to allocate (?P<bytes>\d+) bytes",
        r"(?P<detail>(?:^|\W)MemoryError|std::bad_alloc|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|Unable to allocate [\d.]+ \w+ for an array|oom-kill|Out of memory: Killed process|\[enforce fail at .*alloc_cpu)",
    ),
    "out_of_memory",
    "The host has no memory for the request.",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.",
    names=Naming("host memory", "{bytes} bytes asked for"),
    fix="make the batch smaller, or give the process more memory",
)
TABLE.cause(
    "limit_signal",
    (
        r"(?P<detail>(?:CPU time|File size) limit exceeded(?: signal terminated program (?P<program>[\w+.-]+))?)",
        r"(?P<detail>\bSIGXCPU\b|\bSIGXFSZ\b|died with <Signals\.SIGX(?:CPU|FSZ): \d+>)",
    ),
    "environment",
    "A limit of the process, on its processor time (RLIMIT_CPU) or on the size of its files (RLIMIT_FSIZE), ended it.",
    "g++: fatal error: CPU time limit exceeded signal terminated program cc1plus",
    names=Naming("{detail}"),
    fix="raise the limit (ulimit -t, ulimit -f) for the process and what it starts",
)
TABLE.error(
    "disk",
    r"(?P<detail>No space left on device|Disk quota exceeded|Read-only file system|Too many open files|File too large)",
    "environment",
    "A file could not be written or opened.",
    "OSError: [Errno 28] No space left on device: '/tmp/torchinductor'",
    names=Naming("{detail}"),
)
TABLE.cause(
    "compiler_refused",
    r"(?P<detail>Permission denied|Exec format error)[^\n]*?: '(?P<program>[^']*(?:g\+\+|gcc|clang|nvcc|ptxas|/ld)[^'/]*)'",
    "toolchain",
    "The compiler is a file that this machine cannot run.",
    "torch._inductor.exc.InductorError: OSError: [Errno 8] Exec format error: '/opt/cross/bin/g++'",
    names=Naming("{program}", "{detail}"),
)
TABLE.cause(
    "program_missing",
    r"InductorError: FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<program>(?!g\+\+|gcc|clang|nvcc|ptxas|ld)[\w+-]+)'$",
    "environment",
    "A program that the compile starts by its bare name is in no directory of PATH.",
    "torch._inductor.exc.InductorError: FileNotFoundError: [Errno 2] No such file or directory: 'openssl'",
    names=Naming("{program}", "not on the PATH", kind="environment"),
    fix="install {program}, or put the directory in which it is into PATH",
)
TABLE.error(
    "permission",
    r"(?P<detail>PermissionError|Permission denied|Operation not permitted(?! when))(?:.*?: '(?P<path>[^']+)')?",
    "environment",
    "Access to a file or device was refused.",
    "PermissionError: [Errno 13] Permission denied: '/cache/x'",
    names=(Naming("{path}"), Naming("{detail}")),
)
TABLE.error(
    "bad_path",
    (
        r"(?P<detail>NotADirectoryError|\[Errno 20\] Not a directory|IsADirectoryError|FileExistsError|\[Errno 36\] File name too long)(?:.*?: '(?P<path>[^']+)')?",
        r"(?P<detail>Stale file handle|Transport endpoint is not connected|\[Errno 5\] Input/output error)(?:.*?: '(?P<path>[^']+)')?",
        r"(?P<detail>can't start new thread|\[Errno 11\] Resource temporarily unavailable)",
        r"(?P<detail>libgomp: Thread creation failed|OMP: Error #34|pthread_create failed)(?:: (?P<why>.*))?",
    ),
    "environment",
    "The operating system refuses a directory, a file or a thread.",
    "NotADirectoryError: [Errno 20] Not a directory: '/cache/inductor'",
    names=(Naming("{path}", "{detail}"), Naming("{detail}")),
)
TABLE.error(
    "network",
    r"(?P<detail>Connection(?:Refused|Reset|Aborted)Error|Connection refused|Connection reset by peer|Name or service not known|Temporary failure in name resolution|Network is unreachable|No route to host|Address already in use)",
    "environment",
    "A host or port cannot be reached or used.",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    names=Naming("network", "{detail}"),
)
TABLE.error(
    "environment_variable",
    (),
    "environment",
    "A variable that the program reads is not in its environment.",
    "KeyError: 'MODEL_DIR'",
    names=Naming("{variable}", "not set"),
)
