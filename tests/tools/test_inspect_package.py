"""inspect_package: overview, answers to every kind of question, pages; explain_error."""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import ProblemError
from mcp_server.logs.log import read_log
from mcp_server.package.query import FOLDING
from mcp_server.tools.explain_error import program_of
from tests.conftest import Zoo
from tests.memory_faults.support import FAULTS, view_of
from tests.package.made_wrapper import make_wrapper
from tests.package.summaries import WRAPPERS
from tests.recorded import RECORDINGS
from tests.support.tools import tool

Ask = Callable[..., Any]
RESULT_LIMIT = 10_000


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """A function that asks about a package, in a new folder."""

    def run(package: Path, **question: Any) -> Any:
        if package.is_dir():  # only a wrapper's files: use the library beside them
            package = next(package.glob("*.wrapper.cpp")).with_suffix(".so")
            package.touch()
        found = tool("inspect_package", tmp_path, package=package, **question)
        assert len(found.model_dump_json()) < RESULT_LIMIT
        return found

    return run


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A directory with only a wrapper of 320 launches."""
    where = tmp_path / "made"
    where.mkdir()
    (where / "made.wrapper.cpp").write_text(make_wrapper(320))
    (where / "made.wrapper.so").write_bytes(b"")
    return where


def test_defects_of_kernels_are_listed_for_the_largest_sizes(ask: Ask, tmp_path: Path) -> None:
    """A 32-bit index at 100,000 rows is listed with the kernel's page. A healthy kernel has no defect."""
    view_of(FAULTS / "int32_overflow", tmp_path)
    overview = ask(tmp_path).overview
    assert overview is not None
    (defect,) = (each for each in overview.defects if "in 32 bits" in each)
    assert "99,999" in defect and defect.endswith("(for s97 = 100000, the largest)")
    assert defect in ask(tmp_path, kernel="wide_kernel_0").notes
    assert not ask(tmp_path, kernel="triton_poi_fused_add_1").notes


@pytest.mark.slow
def test_an_overview(zoo: Zoo, ask: Ask) -> None:
    """Without a question, the answer has device, inputs, sizes, kernels and all launches."""
    found = ask(zoo("jagged"))
    assert found.overview is not None
    assert (found.overview.device, found.overview.launches, found.overview.outputs) == ("cpu", 3, 1)
    assert found.overview.inputs is not None
    assert found.overview.inputs[1] == "input 1 (args[1]): int64 [s95], s95 of 2 to 64"
    assert found.overview.platform == f"linux {platform.machine()}"
    assert found.overview.constant_names[0] == "head.weight: float32 [4, 8]"
    assert found.overview.weights == "in_library, 128 bytes"
    assert any(file.startswith("wrapper.so: ") for file in found.overview.files)
    assert found.overview.model_lines == "stack frames for 3 of 3 launches"
    assert [fact["index"] for fact in found.facts] == [0, 1, 2]
    assert found.not_understood == []


@pytest.mark.slow
def test_each_kind_of_question(zoo: Zoo, ask: Ask) -> None:
    """Every question is answered with its kind of fact, about the right thing."""
    package = zoo("jagged")

    def one(kind: str, **asked: object) -> Any:
        fact = ask(package, **asked).facts[0]
        assert fact["kind_of_fact"] == kind
        return fact

    launch = one("launch", launch=1)
    assert launch["reads_from"] == [f"{name} was last written by launch 0" for name in ("buf1", "buf0")]
    assert one("kernel", kernel="cpp_fused_index_mul_0")["asserts"] == ["line 27: 0 <= tmp7 < ks1"]
    buffer = one("buffer", buffer="buf2")
    assert (buffer["shape"], buffer["shares_memory_with"]) == ("[s95, 4]", ["buf4"])
    assert buffer["written_by"] == [1, 2]
    taken = one("input", input="args[1]")
    assert (taken["read_by"], taken["reaches"], taken["reaches_outputs"]) == ([0], [0, 1, 2], [0])
    assert one("constant", constant="head.weight")["read_by"] == [1]
    assert one("launch", location="models.py:108")["index"] == 0
    traced = one("assertion", assertion="index out of bounds: 0 <= tmp7 < ks1")
    assert traced["index_from"] == ["input 1 (args[1])"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"launch": 99},
        {"kernel": "nope"},
        {"buffer": "nope"},
        {"input": "7"},
        {"constant": "nope"},
        {"location": "models.py:1"},
        {"location": "models.py"},
        {"assertion": "segmentation fault"},
    ],
)
def test_what_is_not_there(zoo: Zoo, ask: Ask, asked: dict[str, object]) -> None:
    """An unknown name is rejected, with the known names or the required form."""
    with pytest.raises(ProblemError) as caught:
        ask(zoo("jagged"), **asked)
    assert caught.value.allowed or "file.py:LINE" in caught.value.what


def test_pages_hold_everything_once(made: Path, ask: Ask) -> None:
    """The pages give every launch once, in order, and each page is within its size."""
    seen: list[int] = []
    offset: int | None = 0
    while offset is not None and len(seen) < 3:
        page = ask(made, offset=offset)
        assert page.total == 320
        seen += [fact["index"] for fact in page.facts]
        offset = page.next_offset
    assert seen == list(range(len(seen)))


def test_answers_about_a_large_wrapper_stay_small(made: Path, ask: Ask) -> None:
    """Names used by hundreds of launches are counted completely, but listed in part."""
    (buffer,) = ask(made, buffer="buf320").facts
    assert buffer["computed_by_launches"] == 320


def test_constant_folding_is_shown(tmp_path: Path, ask: Ask) -> None:
    """The overview says that launches run before the first call. Constant and kernel have them."""
    for file, kind in (("wrappers", "wrapper"), ("kernels", "kernel")):
        source = RECORDINGS / file / "folding.torch-2.13-cpu.cpp"
        (tmp_path / f"folding.{kind}.cpp").write_bytes(source.read_bytes())
    (note,) = ask(tmp_path).notes
    assert note.startswith("2 more launches run once, before the first call, to fold constants")
    constant, first, second = ask(tmp_path, constant="_FOLDED_CONST_permute").facts
    assert constant["read_by"] == [0] and first["within"] == second["within"] == [FOLDING]
    assert second["kernel"] == "aoti_torch_cpu_mm_out"
    assert second["reads_from"] == ["buf1 was last written by launch 0"]
    kernel, launch = ask(tmp_path, kernel="cpp_fused_exp_mul_unsqueeze_0").facts
    assert kernel["launches"] == [] and launch == first


def test_missing_sources_are_told(tmp_path: Path, ask: Ask) -> None:
    """If Triton sources are missing, an assertion is not said to belong to another package."""
    source = WRAPPERS / "lazy_shift.torch-2.15-cuda.cpp"
    (tmp_path / "lazy.wrapper.cpp").write_bytes(source.read_bytes())
    (told,) = ask(tmp_path).notes
    assert told.startswith("3 Triton kernels have no source in the package")
    (note,) = ask(tmp_path, assertion="index out of bounds: 0 <= tmp6 < ks0").notes
    assert told in note


# explain_error.


@pytest.mark.parametrize(
    ("lines", "arguments"),
    [
        (
            "./run.sh: line 34:  1930 Aborted    (core dumped) ./aoti_run m.so -i 'Once upon' > out",
            {"command": ["./aoti_run", "m.so", "-i", "Once upon"]},
        ),
        (
            "/w/5.sh: line 86:  2618 Segmentation fault (core dumped) python generate.py --dso ${DIR}/m.so",
            {"script": "generate.py"},
        ),
        (
            "  what():  Error in dlopen: /tmp/model.so: undefined symbol: _ZN3c107WarningC1ESt7variant\n"
            "frame #0: c10::Error::Error() + 0x6c (0x7f43696d0a0c in /t/lib/libc10.so)\n"
            "frame #3: <unknown function> + 0xa2c4 (0x55cb652cd2c4 in ./aoti_example)",
            {"command": ["./aoti_example"]},
        ),
        ("frame #4: <unknown function> + 0x1a26bf (0x55c009ea06bf in /opt/conda/bin/python)", {}),
    ],
    ids=["of a shell", "of a script", "of a stack", "of Python"],
)
def test_the_program_that_a_log_names(lines: str, arguments: dict[str, object]) -> None:
    """A shell names the program that ended with its arguments, a C++ stack without."""
    assert program_of(read_log(lines.splitlines())) == arguments


@pytest.mark.parametrize("text", ["my model returns nan", "the answers are wrong"])
def test_an_unknown_text_is_not_called_silence(tmp_path: Path, text: str) -> None:
    """The result does not say that the text has no error, and does not suggest a hang."""
    found = tool("explain_error", tmp_path, text=text)
    assert found.summary == "This text matches no known error."
    assert found.next.tool == "run_deterministic" and found.lines == [f"1: {text}"]
    assert any("pass the whole log" in note for note in found.notes)


def test_the_closest_family_is_named(tmp_path: Path) -> None:
    """A text with a typing error is compared with families: the closest is a note, not a finding."""
    found = tool("explain_error", tmp_path, text="index out of bound 0 <= tmp27 < 32L")
    assert not found.known and found.category is None
    assert found.notes[0].startswith("closest known error: cpu_index_assert")


def test_open_launch_without_error(tmp_path: Path) -> None:
    """Without an error text, the launch that did not end is named."""
    found = tool("explain_error", tmp_path, text="[ before_launch: a_0 ]")
    assert (found.last_launch, found.next.tool) == ("a_0", "diagnose")


def recorded(where: Path, name: str) -> Path:
    """Write a recorded package, and return its library. The wrapper and CPU kernels are beside it."""
    for folder, kind in (("wrappers", "wrapper"), ("kernels", "kernel")):
        source = RECORDINGS / folder / f"{name}.cpp"
        if source.exists():
            (where / f"a.{kind}.cpp").write_bytes(source.read_bytes())
    (where / "a.wrapper.so").touch()
    return where / "a.wrapper.so"


@pytest.mark.slow
def test_several_places_are_shown(tmp_path: Path, zoo: Zoo) -> None:
    """If a kernel has a check twice, both are shown with their differences. A line selects one."""
    text = "index out of bounds: 0 <= tmp10 < 12L"
    both = tool("explain_error", tmp_path, text=text, package=zoo("scatter"))
    assert len({fact["location"] for fact in both.trace}) == len(both.trace) == 2
    assert both.next.arguments["package"] == str(zoo("scatter"))
    assert both.notes == ["2 places fit; the generated file and line, or a trace, tell them apart"]
    place = both.trace[1]["location"].replace("kernel.cpp", "/c/x.kernel.cpp")
    raised = f"{text}\nException raised from {both.trace[1]['kernel']} at {place} (most recent call first):"
    one = tool("explain_error", tmp_path, text=raised, package=zoo("scatter"))
    assert (one.trace, one.notes) == ([both.trace[1]], [])


def test_the_text_of_a_device(tmp_path: Path) -> None:
    """A Triton assertion gives the launch, the input with the index, and the range of negative indices."""
    package = recorded(tmp_path, "scatter.torch-2.11-cuda")
    text = (
        "/c/xy.py:27: unknown: block: [0,0,0], thread: [7,0,0] Assertion "
        "`index out of bounds: 0 <= tl.broadcast_to(tmp4, [XBLOCK]) < 12` failed."
    )
    found = tool("explain_error", tmp_path, text=text, package=package)
    (fact,) = found.trace
    assert fact["kernel"] == "triton_poi_fused_index_put_zeros_2"
    assert fact["index_from"] == ["input 1 (args[1])"]
    assert fact["fix"].after.startswith("if ((args[1] < -12) | (args[1] > 11)).any(): raise ValueError(")
