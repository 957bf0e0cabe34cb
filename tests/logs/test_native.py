"""Reports of tools for native code: dumps, the driver's log, sanitizers, and the value printer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.logs.crash_reports import Access, read_cuda_gdb, read_native, read_progress_log
from mcp_server.logs.log import read_log
from mcp_server.logs.printer import printed_tensors, read_printout
from mcp_server.logs.sanitizer import MAX_SITES, read_sanitizer_file
from tests.logs.support import lines_of, read_sanitizer
from tests.recorded import RECORDINGS
from tests.zoo.names import few

# Core dumps, the driver's progress log, native sanitizers and backtraces.

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


def test_progress_log() -> None:
    """The driver's log names the exception and the kernel of the first one, amid other output."""
    first = read_progress_log(["other output", *PROGRESS, *PROGRESS])
    assert first is not None
    assert (first.text, first.kernel) == ("CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS", "add_position_kernel")
    assert read_progress_log(["coredump: SM 1/132 has finished state collection"]) is None
    assert read_cuda_gdb(["[No CUDA devices]", "No symbol table is loaded."]) is None


def test_heap_overflow() -> None:
    """AddressSanitizer's report gives access and kernel; the stack of the allocation is left out."""
    (error,) = read_native(lines_of("heap-overflow.asan.txt")).errors
    assert (error.tool, error.kind) == ("asan", "invalid_access")
    assert (error.text, error.direction, error.size) == ("heap-buffer-overflow", "read", 4)
    assert (error.frames[0].function, error.frames[0].line) == ("cpp_fused_add_0", 3)
    assert [frame.function for frame in error.frames].count("main") == 1


def test_the_stack_after_a_runtime_error_names_its_function() -> None:
    """`print_stacktrace=1` adds frames: the first is the function of the line before them."""
    (error,) = read_native(lines_of("index-overflow.ubsan.txt")).errors
    assert (error.tool, error.kind) == ("ubsan", "undefined")
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
] + [*PROGRESS, "Min value: ²", "[  after_launch - k - buf9  ]:"]


@pytest.mark.parametrize("reader", [read_cuda_gdb, read_native, read_progress_log, read_printout])
@settings(deadline=None, max_examples=few(60))
@given(lines=st.lists(st.one_of(st.text(max_size=60), st.sampled_from(LINES)), max_size=60))
def test_never_raises(reader: Callable[[list[str]], object], lines: list[str]) -> None:
    """Any mixture of lines is read without an error."""
    reader(lines)


# compute-sanitizer's text reports.

M = "========= "


def one(*lines: str) -> Access:
    """The only site of a report made of these lines, marks left out."""
    report = read_sanitizer([f"{M}{line}" for line in (*lines, "")])
    assert len(report.sites) == 1
    return report.sites[0]


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
    """A recorded report gives one site with kernel, line, access, count and launch."""
    report = read_sanitizer(lines_of(f"{name}.memcheck.txt"))
    (site,) = report.sites
    assert (site.kernel, site.line, site.direction, site.size) == (kernel, line, direction, size)
    assert (report.errors, report.complete, site.launch_offset) == (errors, errors is not None, launch)
    assert site.kind == "invalid_access"


def test_clean_run() -> None:
    """A run without faults has a summary of zero errors and no sites."""
    report = read_sanitizer(lines_of("clean.memcheck.txt"))
    assert (report.errors, report.sites) == (0, ())


def test_first_summary_counts() -> None:
    """Of the two summary lines the first is the count; the second says what was not printed."""
    report = read_sanitizer(lines_of("feature-cache.memcheck.txt"))
    assert report.errors == 44
    assert [site.kind for site in report.sites] == ["assert"]
    assert report.sites[0].kernel == ""


def test_program_lines_are_apart() -> None:
    """The program's own lines are handed on, and only they."""
    program: list[str] = []
    read_sanitizer(lines_of("moe-dispatch.memcheck.txt"), program.append)
    assert not any(line.startswith("=") for line in program)
    assert any("balanced 16384" in line for line in program)


@pytest.mark.parametrize(
    ("place", "kernel", "file", "line"),
    [
        ("at k_0+0x370 in ab.py:25", "k_0", "ab.py", 25),
        ("at 0xda0 in a.cu:175:matmul", "matmul", "a.cu", 175),
        ("at kernel()+0x50 in f.cu:34", "kernel()", "f.cu", 34),
        ("at 0x17b0 in triton__0d1d", "triton__0d1d", "", None),
        ("at sum(int *, int *)+0x90", "sum(int *, int *)", "", None),
        ("at void f<float, 4>(T1 *)+0x1a0 in /a b/f.cu:7", "void f<float, 4>(T1 *)", "/a b/f.cu", 7),
    ],
)
def test_forms_of_a_place(place: str, kernel: str, file: str, line: int | None) -> None:
    """Old and new forms of the faulting place, C++ names with spaces among them."""
    site = one("Invalid __global__ write of size 4 bytes", f"    {place}")
    assert (site.kernel, site.file, site.line) == (kernel, file, line)


@pytest.mark.parametrize(
    ("text", "address", "problem"),
    [
        ("Address 0x7f00 is out of bounds", 0x7F00, "is out of bounds"),
        ("Access to 0x7f04 is out of bounds", 0x7F04, "is out of bounds"),
        ("Address 0x7f01 is misaligned", 0x7F01, "is misaligned"),
    ],
)
def test_forms_of_an_address(text: str, address: int, problem: str) -> None:
    """Both wordings of a bad address."""
    site = one("Invalid __shared__ read of size 8", "    at k+0x10", f"    {text}")
    assert (site.address, site.problem) == (address, problem)


@pytest.mark.parametrize(
    ("where", "of_size", "distance", "side", "size"),
    [
        ("1,909,996,289 bytes after", " of size 512 bytes", 1_909_996_289, "after", 512),
        ("99 bytes after", " of size 1200 bytes", 99, "after", 1200),
        ("8 bytes before", " of size 1,024 bytes", 8, "before", 1024),
        ("inside", " of size 2,048 bytes", 0, "inside", 2048),
    ],
)
def test_forms_of_the_nearest_allocation(
    where: str, of_size: str, distance: int, side: str, size: int
) -> None:
    """Numbers with and without commas, and all three sides."""
    text = f"and is {where} the nearest allocation at 0x7f{of_size}"
    nearest = one("Invalid __global__ read of size 4 bytes", "    at k+0x10", f"    {text}").nearest
    assert nearest is not None
    assert (nearest.distance, nearest.side, nearest.size) == (distance, side, size)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("Uninitialized __global__ memory read of size 4 bytes", "uninitialised"),
        ("Error: Race reported between Write access at k+0x70 in a.py:12", "race"),
        ("Barrier error detected. Divergent thread(s) in warp.", "barrier"),
        ("Leaked 1,024 bytes at 0x7f0000000000", "leak"),
        ('Program hit cudaErrorInvalidValue (error 1) on CUDA API call', "api_error"),
        ("Warp assert", "assert"),
        ("Warp Illegal Address", "exception"),
    ],
)  # fmt: skip
def test_kinds(head: str, kind: str) -> None:
    """Records of the other tools are told apart."""
    assert one(head, "    at k+0x10 in a.py:3").kind == kind


def test_two_launches_are_two_sites() -> None:
    """The same instruction reached from two launches is two sites."""
    lines = [
        line
        for offset in ("0x100", "0x200")
        for line in (
            f"{M}Invalid __global__ read of size 4 bytes",
            f"{M}    at k+0x10 in a.py:3",
            f"{M}        Host Frame: AOTInductorModel::run_impl(void**) [{offset}] in x.wrapper.so",
        )
    ]
    assert [site.launch_offset for site in read_sanitizer(lines).sites] == [0x100, 0x200]


def many(count: int) -> Iterator[str]:
    """A report of `count` records at one site."""
    frame = (
        f"{M}        Host Frame: torch::aot_inductor::AOTInductorModel::run_impl(void**) [0x1d708] in a.so"
    )
    for number in range(count):
        yield f"{M}Invalid __global__ read of size 4 bytes"
        yield f"{M}    at k+0x10 in a.py:3"
        yield f"{M}    by thread ({number % 128},0,0) in block ({number // 128},0,0)"
        yield f"{M}    Access to {hex(0x1000 + 4 * number)} is out of bounds"
        yield frame
        yield M
    yield f"{M}ERROR SUMMARY: {count} errors"


def test_sites_are_bounded() -> None:
    """More different sites than fit are not kept; a site that is known is still counted."""
    lines = [
        line
        for number in range(MAX_SITES + 7)
        for line in (f"{M}Invalid __global__ read of size 4 bytes", f"{M}    at k+{hex(number)} in a.py:3")
    ]
    report = read_sanitizer([*lines, *lines[:2], M])
    assert (len(report.sites), report.sites[0].count, report.sites[1].count) == (MAX_SITES, 2, 1)


def test_a_recorded_race() -> None:
    """racecheck: kernel and line of the write, the read in the text, hazards as the count of errors."""
    report = read_sanitizer_file(RECORDINGS / "shared-race.racecheck.txt")
    (site,) = report.faults
    assert (site.kind, site.kernel, site.line) == ("race", "neighbour_kernel", 5)
    assert site.text.endswith(
        " and Read access at neighbour_kernel+0x180 in neighbour_kernel.cu:6 [2048 hazards]"
    )
    assert (report.errors, report.complete, site.launch_offset) == (1, True, None)


def test_a_recorded_barrier() -> None:
    """synccheck: kernel, line and thread."""
    (site,) = read_sanitizer_file(RECORDINGS / "half-barrier.synccheck.txt").faults
    assert (site.kind, site.kernel, site.line) == ("barrier", "half_warp_kernel", 6)
    assert (site.thread, site.block, site.launch_offset) == ((0, 0, 0), (2, 0, 0), None)


def test_a_recorded_uninitialised_read() -> None:
    """initcheck: the reader, the address and the launch."""
    (text,) = read_sanitizer_file(RECORDINGS / "uninitialised.initcheck.txt").faults
    assert (text.kind, text.kernel, text.line) == ("uninitialised", "triton_poi_fused_cos_1", 23)
    assert (text.address, text.size, text.launch_offset) == (0x7FD686800300, 4, 0x1C409)


def test_a_program_that_ran_unchecked_gives_no_report() -> None:
    """Nothing attached in time: no count of errors, and the message that says so."""
    report = read_sanitizer_file(RECORDINGS / "no-attach.synccheck.txt")
    assert (report.faults, report.errors, report.complete) == ((), None, False)
    assert "No attachable process found" in report.messages[0]


_LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [*many(2), M, "a line of the program", f"{M}    at k+0x20 in a.py:4", f"{M}RACECHECK SUMMARY: 1"]
        ),
        st.text(alphabet="=ab 0x()\r", max_size=20),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(_LINES, st.integers(1, 3))
def test_a_file_is_read_like_its_lines(lines: list[str], times: int) -> None:
    """Counting repeats without reading them changes nothing in the report, nor in what the program said."""
    text = "".join(f"{line}\n" for line in [*many(2), *lines] * times)
    of_file: list[str] = []
    of_lines: list[str] = []
    with TemporaryDirectory() as name:
        path = Path(name) / "output.log"
        path.write_bytes(text.encode())
        found = read_sanitizer_file(path, of_file.append)
    read = [line.rstrip("\r") for line in text.split("\n")]
    assert found == read_sanitizer(read, of_lines.append)
    assert [line for line in of_file if line] == [line for line in of_lines if line]


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.memcheck.txt")), ids=lambda path: path.name)
def test_a_recorded_file_is_read_like_its_lines(path: Path) -> None:
    """The same on every recording."""
    assert read_sanitizer_file(path) == read_sanitizer(path.read_text(encoding="utf-8").split("\n"))


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=60),
            st.text(max_size=60).map(lambda text: f"{M}{text}"),
            st.text(max_size=60).map(lambda text: f"{M}    {text}"),
            st.sampled_from(list(many(2))),
        ),
        max_size=80,
    )
)
def test_a_damaged_report_never_raises(lines: list[str]) -> None:
    """Any mixture of lines gives a report whose sites are bounded, distinct and counted."""
    sites = read_sanitizer(lines).sites
    assert all(1 <= site.count <= len(lines) for site in sites)
    assert sum(site.count for site in sites) <= len(lines)
    assert all(len(site.text) <= 601 for site in sites)


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
    """One block as level 2 prints it."""
    return [line.format(when=when, kernel=kernel, argument=argument, value=value) for line in BLOCK]


def test_recorded_runs() -> None:
    """A recorded run of level 2 shows its tensors, one of level 1 names its files."""
    assert read_printout(lines_of("printer2.txt")).tensors == 6
    found = read_printout(lines_of("printer1.txt"))
    assert found.files > 3 and "saved" in str(found)


def test_the_first_value_that_is_not_finite_is_named() -> None:
    """With its buffer and launch; an output before its launch is noise, whatever it holds."""
    lines = block("before_launch", "buf1", "nan") + block("after_launch", "buf1", "2")
    assert "all finite" in str(read_printout(lines))
    bad = block("after_launch", "buf2", "-inf", "k_7")
    assert "buf2 after launch of k_7 is the first with NaN or infinity" in str(read_printout([*lines, *bad]))


def test_a_mean_that_overflowed_is_no_finding() -> None:
    """The printer computes it in float32."""
    lines = [*block("after_launch", "buf0", "2")]
    lines[lines.index("Mean value: 2")] = "Mean value: inf"
    assert read_printout(lines).first_bad is None


def test_a_scalar_before_a_tensor_shares_its_line() -> None:
    """The literal backslash-n after a scalar does not hide the header that follows on the same line."""
    names = ("s77: 12  ]", "c: -3  ]", "arg0_1  ]:")
    line = r"\n".join(f"[  before_launch - k_0 - {name}" for name in names)
    (record,) = printed_tensors([line, "Min value: nan", "Number of elements: 1"])
    assert record.argument == "arg0_1"


def test_a_block_that_was_cut_off_is_kept() -> None:
    """What the process printed before it died."""
    (record,) = printed_tensors(block("after_launch", "buf0", "nan")[:7])
    assert record.non_finite


def test_launch_names_on_one_line() -> None:
    """Level 3 names that share a line are all counted."""
    found = read_log(
        ["[ before_launch: a ][ after_launch: a ]", "text [ before_launch: at::_ops::x::call ] t"]
    )
    assert found.last_launch is not None and found.last_launch.kernel == "at::_ops::x::call"
    assert (found.launches, found.last_launch.finished, found.last_launch.line) == (1, 1, 2)
