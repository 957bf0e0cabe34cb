"""compute-sanitizer's text reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.logs.crash_reports import Access
from mcp_server.logs.sanitizer import MAX_SITES, read_sanitizer_file
from tests.logs.support import lines_of, read_sanitizer
from tests.recorded import RECORDINGS

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
        ("rotary", "rope_kernel", 27, "read", 4, 194_016, 0x1DA13),
        ("session", "opening_and_mean", 23, "read", 4, 384, 0x1E3B5),
        ("token-merge", "triton_per_fused_add_mul_native_layer_norm_tanh_8", 33, "read", 16, 4_576, 0x2134A),
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
    read_sanitizer(lines_of("session.memcheck.txt"), program.append)
    assert not any(line.startswith("=") for line in program)
    assert any("evening (200, 5) True" in line for line in program)


def test_recorded_nearest_allocation() -> None:
    """The nearest allocation of a recorded report, with its size and distance in bytes."""
    (site,) = read_sanitizer(lines_of("token-merge.memcheck.txt")).sites
    assert site.nearest is not None
    assert (site.nearest.size, site.nearest.distance, site.nearest.side) == (200_704, 372_737, "after")


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


def test_race_names_its_place() -> None:
    """A race's place is read from its first line."""
    site = one(
        "Error: Race reported between Write access at k+0x70 in a.py:12",
        "    and Read access at k+0x80 in a.py:13 [64 hazards]",
    )
    assert (site.kernel, site.line) == ("k", 12)


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


def test_records_are_counted_not_kept() -> None:
    """Equal records become one site with their count; thread and address are the first record's."""
    report = read_sanitizer(many(3_000))
    (site,) = report.sites
    assert (site.count, report.errors) == (3_000, 3_000)
    assert (site.thread, site.block, site.address) == ((0, 0, 0), (0, 0, 0), 0x1000)


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
def test_never_raises(lines: list[str]) -> None:
    """Any mixture of lines gives a report whose sites are bounded, distinct and counted."""
    sites = read_sanitizer(lines).sites
    assert all(1 <= site.count <= len(lines) for site in sites)
    assert sum(site.count for site in sites) <= len(lines)
    assert all(len(site.text) <= 601 for site in sites)
