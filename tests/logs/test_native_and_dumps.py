"""Core dumps, the driver's progress log, native sanitizers and backtraces."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.logs.crash_reports import read_cuda_gdb, read_native, read_progress_log
from tests.logs.support import lines_of
from tests.recorded import RECORDINGS

PROGRESS = """\
[06:43:15.209195] coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)
[06:43:15.209210] coredump:   - PC 0x7462c3bac310
[06:43:15.209486] coredump:   #0\t0x7462c3bac620\tadd_position_kernel
""".splitlines()


def test_illegal_access_takes_the_exact_line() -> None:
    """The line is that of $errorpc, not of frame #0, with the whole path of the frame, block and thread."""
    dump = read_cuda_gdb(lines_of("ima-user-triton.cuda-gdb.txt"))
    assert dump is not None
    assert (dump.kind, dump.text) == ("invalid_access", "Warp Illegal Address")
    assert (dump.kernel, dump.line) == ("add_position_kernel", 25)
    assert (dump.block, dump.thread) == ((2, 0, 0), (0, 0, 0))
    assert dump.file.startswith("/cache/")


def test_assert_has_no_line() -> None:
    """After an assertion the line of frame #0 is only near the fault, so it is not reported as its line."""
    dump = read_cuda_gdb(lines_of("index-oob.cuda-gdb.txt"))
    assert dump is not None
    assert (dump.kind, dump.line) == ("assert", None)
    assert dump.text.endswith("(the line is near, not exact)")
    assert dump.kernel == "triton_per_fused_add_embedding_native_layer_norm_0"


def test_a_session_without_a_dump() -> None:
    """A session that names neither an exception nor a kernel shows no fault."""
    assert read_cuda_gdb(["[No CUDA devices]", "No symbol table is loaded."]) is None


def test_progress_log() -> None:
    """The driver's log names the exception and the kernel of the first one, amid other output."""
    first = read_progress_log(["other output", *PROGRESS, *PROGRESS])
    assert first is not None
    assert (first.text, first.kernel) == ("CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS", "add_position_kernel")


def test_progress_lines_without_an_exception() -> None:
    """Progress alone is no exception."""
    assert read_progress_log(["coredump: SM 1/132 has finished state collection"]) is None


def test_heap_overflow() -> None:
    """AddressSanitizer's report gives access and kernel; the stack of the allocation is left out."""
    (error,) = read_native(lines_of("heap-overflow.asan.txt")).errors
    assert (error.tool, error.kind) == ("asan", "invalid_access")
    assert (error.text, error.direction, error.size) == ("heap-buffer-overflow", "read", 4)
    assert (error.frames[0].function, error.frames[0].line) == ("cpp_fused_add_0", 3)
    assert [frame.function for frame in error.frames].count("main") == 1


def test_undefined_behaviour() -> None:
    """A `runtime error` line gives its place."""
    (error,) = read_native(lines_of("signed-overflow.ubsan.txt")).errors
    assert (error.tool, error.kind) == ("ubsan", "undefined")
    assert error.text.startswith("signed integer overflow")
    assert (error.frames[0].file, error.frames[0].line) == ("oob.cpp", 4)


def test_the_stack_after_a_runtime_error_names_its_function() -> None:
    """`print_stacktrace=1` adds frames: the first is the function of the line before them."""
    (error,) = read_native(lines_of("index-overflow.ubsan.txt")).errors
    assert error.frames[0].function == "cpp_fused_embedding_0"
    assert (error.frames[0].line, error.frames[1].function.partition("(")[0]) == (
        24,
        "torch::aot_inductor::AOTInductorModel::run_impl",
    )


@pytest.mark.parametrize(
    ("reported", "accessed"),
    [("1003717d9060", 0x80178BF08300), ("7f26069a9300", 0x7F26069A9300), ("602000000034", 0x602000000034)],
)
def test_the_shadow_of_an_access_beyond_all_addresses(reported: str, accessed: int) -> None:
    """AddressSanitizer dies in its own look-up then, and reports where that was."""
    (error,) = read_native(
        [f"==1==ERROR: AddressSanitizer: SEGV on unknown address 0x{reported} (pc 0x1 bp 0x2 sp 0x3 T0)"]
    ).errors
    assert error.address == accessed


def test_debugger_backtrace() -> None:
    """gdb's backtrace gives signal and frames, arguments left out."""
    report = read_native(lines_of("null-read.gdb.txt"))
    assert report.signal == "SIGSEGV"
    assert [(frame.function, frame.line) for frame in report.backtrace] == [
        ("cpp_fused_add_0", 1),
        ("main", 2),
    ]


def test_c10_backtrace() -> None:
    """The frames of a C++ exception are read, and generated code is told from libraries."""
    frames = read_native(lines_of("context-blend.plain.txt")).backtrace
    assert any(frame.generated and "run_impl" in frame.function for frame in frames)
    assert not frames[0].generated


def test_frames_of_a_package_are_generated() -> None:
    """A signal's report says read or write, and which frames are code of the package."""
    lines = [
        "==1==ERROR: AddressSanitizer: SEGV on unknown address 0x000000000000 (pc 0x1 bp 0x2 sp 0x3 T0)",
        "==1==The signal is caused by a READ memory access.",
        "    #0 0x1 in memcpy ../x.c:1",
        "    #1 0x2 in cpp_fused_mul_3(float const*, long) /c/ab.kernel.cpp:30:5",
        "    #2 0x3 in run_impl (/c/ab.wrapper.so+0x20)",
        "SUMMARY: AddressSanitizer: SEGV",
    ]
    (error,) = read_native(lines).errors
    assert (error.direction, [frame.generated for frame in error.frames]) == ("read", [False, True, True])
    assert error.frames[1].function == "cpp_fused_mul_3(float const*, long)"
    assert (error.kernel, error.file, error.line) == ("cpp_fused_mul_3", "/c/ab.kernel.cpp", 30)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_real_sanitizer_output(tmp_path: Path) -> None:
    """The output of this machine's own compiler is read like the recording."""
    source = tmp_path / "oob.cpp"
    source.write_text(
        "#include <cstdlib>\n"
        'extern "C" float cpp_fused_add_0(const float* p, long n) { return p[n]; }\n'
        "int main(int c, char**) { float* p = (float*)malloc(24); return (int)cpp_fused_add_0(p, 5 + c); }\n",
        encoding="utf-8",
    )
    program = tmp_path / "oob"
    argv = ["g++", "-g", "-O0", "-fsanitize=address", str(source), "-o", str(program)]
    built = subprocess.run(argv, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip("this g++ has no AddressSanitizer")
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    (error,) = read_native(done.stderr.splitlines()).errors
    assert (error.text, error.size, error.frames[0].function) == (
        "heap-buffer-overflow",
        4,
        "cpp_fused_add_0",
    )
    assert error.frames[0].line == 2


LINES = [
    line
    for name in ("ima-user-triton.cuda-gdb.txt", "heap-overflow.asan.txt", "null-read.gdb.txt")
    for line in (RECORDINGS / name).read_text(encoding="utf-8").splitlines()
] + PROGRESS


@pytest.mark.parametrize("reader", [read_cuda_gdb, read_native, read_progress_log])
@settings(deadline=None, max_examples=60)
@given(lines=st.lists(st.one_of(st.text(max_size=60), st.sampled_from(LINES)), max_size=60))
def test_never_raises(reader: Callable[[list[str]], object], lines: list[str]) -> None:
    """Any mixture of lines is read without an error."""
    reader(lines)
