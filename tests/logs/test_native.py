"""Reports of tools for native code: dumps, the driver's log, sanitizers, and the value printer."""

import pytest

from mcp_server.logs.crash_reports import read_cuda_gdb, read_native
from mcp_server.logs.journal import read_printout
from mcp_server.logs.sanitizer import read_sanitizer_file
from tests.logs.support import lines_of, read_sanitizer
from tests.recorded import RECORDINGS

# Core dumps, native sanitizers and backtraces.


def test_illegal_access_takes_the_exact_line() -> None:
    """The line comes from $errorpc and not from frame #0; the frame adds the full path, block and thread."""
    dump = read_cuda_gdb(lines_of("ima-user-triton.cuda-gdb.txt"))
    assert dump is not None
    assert (dump.kind, dump.text) == ("invalid_access", "Warp Illegal Address")
    assert (dump.kernel, dump.line) == ("add_position_kernel", 25)
    assert (dump.block, dump.thread) == ((2, 0, 0), (0, 0, 0))
    assert dump.file.startswith("/cache/")


def test_heap_overflow() -> None:
    """AddressSanitizer's report gives access and kernel, without the stack of the allocation."""
    (error,) = read_native(lines_of("heap-overflow.asan.txt")).errors
    assert (error.tool, error.kind) == ("asan", "invalid_access")
    assert (error.text, error.direction, error.size) == ("heap-buffer-overflow", "read", 4)
    assert (error.frames[0].function, error.frames[0].line) == ("cpp_fused_add_0", 3)
    assert [frame.function for frame in error.frames].count("main") == 1


def test_the_stack_after_a_runtime_error_names_its_function() -> None:
    """With `print_stacktrace=1`, the first frame gives the function of the line that was reported."""
    (error,) = read_native(lines_of("index-overflow.ubsan.txt")).errors
    assert (error.tool, error.kind) == ("ubsan", "undefined")
    assert error.frames[0].function == "cpp_fused_embedding_0"
    caller = error.frames[1].function.partition("(")[0]
    assert (error.frames[0].line, caller) == (24, "torch::aot_inductor::AOTInductorModel::run_impl")


def test_debugger_backtrace() -> None:
    """gdb's backtrace gives the signal and the frames, without arguments."""
    report = read_native(lines_of("null-read.gdb.txt"))
    assert report.signal == "SIGSEGV"
    frames = [(frame.function, frame.line) for frame in report.backtrace]
    assert frames == [("cpp_fused_add_0", 1), ("main", 2)]


def test_frames_of_a_package_are_generated() -> None:
    """A report of a signal says whether it was a read or write, and which frames are code of the package."""
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


# compute-sanitizer's text reports.


@pytest.mark.parametrize(
    ("name", "kernel", "line", "direction", "size", "errors", "launch"),
    [
        ("moe-dispatch", "dispatch_rows", 22, "write", 16, 148_640, 0x1E857),
        ("ima-user-triton", "add_position_kernel", 25, "read", 8, None, 0x1D708),
    ],
)
def test_recorded_access(
    name: str, kernel: str, line: int, direction: str, size: int, errors: int | None, launch: int
) -> None:
    """A recorded report gives one site, with kernel, line, access, count and launch."""
    report = read_sanitizer(lines_of(f"{name}.memcheck.txt"))
    (site,) = report.sites
    assert (site.kernel, site.line, site.direction, site.size) == (kernel, line, direction, size)
    assert (report.errors, report.complete, site.launch_offset) == (errors, errors is not None, launch)
    assert site.kind == "invalid_access"


def test_a_clean_report_is_complete() -> None:
    """It has a summary without an error, and no site."""
    report = read_sanitizer(lines_of("clean.memcheck.txt"))
    assert (report.sites, report.errors, report.complete) == ((), 0, True)


def test_a_recorded_race() -> None:
    """racecheck: kernel and line of the write; the text has the read. `errors` counts hazards."""
    report = read_sanitizer_file(RECORDINGS / "shared-race.racecheck.txt")
    (site,) = report.faults
    assert (site.kind, site.kernel, site.line) == ("race", "neighbour_kernel", 5)
    read = "Read access at neighbour_kernel+0x180 in neighbour_kernel.cu:6 [2048 hazards]"
    assert site.text.endswith(f" and {read}")
    assert (report.errors, report.complete, site.launch_offset) == (1, True, None)


def test_a_recorded_barrier() -> None:
    """synccheck: kernel, line and thread."""
    (site,) = read_sanitizer_file(RECORDINGS / "half-barrier.synccheck.txt").faults
    assert (site.kind, site.kernel, site.line) == ("barrier", "half_warp_kernel", 6)
    assert (site.thread, site.block, site.launch_offset) == ((0, 0, 0), (2, 0, 0), None)


def test_a_recorded_uninitialised_read() -> None:
    """initcheck: the kernel that reads, the address and the launch."""
    (text,) = read_sanitizer_file(RECORDINGS / "uninitialised.initcheck.txt").faults
    assert (text.kind, text.kernel, text.line) == ("uninitialised", "triton_poi_fused_cos_1", 23)
    assert (text.address, text.size, text.launch_offset) == (0x7FD686800300, 4, 0x1C409)


# The value printer's output.

BLOCK = (
    "[  {when} - {kernel} - {argument}  ]:",
    " {value}",
    "[ CUDAFloatType{{1}} ]",
    "Number of elements: 1",
    "Dtype: float32",
    "Mean value: {value}",
    "Min value: {value}",
    "Max value: {value}",
    "Device: cuda:0",
    "Size: [1]",
    "Stride: [1]",
    "Layout: Strided",
    "Is contiguous: 1",
    "Requires grad: 0",
    "",
)


def block(when: str, argument: str, value: str, kernel: str = "k_0") -> list[str]:
    """A block as level 2 prints it."""
    return [line.format(when=when, kernel=kernel, argument=argument, value=value) for line in BLOCK]


def test_the_first_value_that_is_not_finite_is_named() -> None:
    """Its buffer and launch are named. An output printed before its launch is ignored as noise."""
    lines = block("before_launch", "buf1", "nan") + block("after_launch", "buf1", "2")
    assert "all finite" in read_printout(lines)
    bad = block("after_launch", "buf2", "-inf", "k_7")
    assert "buf2 after launch of k_7 is the first with NaN or infinity" in read_printout([*lines, *bad])


def test_a_scalar_before_a_tensor_shares_its_line() -> None:
    """A header is found even if a scalar and a literal backslash-n come before it on the line."""
    names = ("s77: 12  ]", "c: -3  ]", "arg0_1  ]:")
    line = r"\n".join(f"[  before_launch - k_0 - {name}" for name in names)
    found = read_printout([line, "Min value: nan", "Number of elements: 1"])
    assert "of 1 tensors that the value printer showed, arg0_1 before launch of k_0" in found
