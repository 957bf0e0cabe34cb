"""Probes are inserted without moving a line, also in a mutated wrapper; what cannot get one is listed.

Each mutated wrapper is a rebuild of seconds: AOTI_DEBUG_THOROUGH=1 tries many.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import Wrapper, read_wrapper
from mcp_server.probes.build import find_toolchain, instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Options, choose_compiler, compile_command, read_recorded, safe_flags
from mcp_server.probes.model_build import blame
from mcp_server.probes.rewrite import Edit, apply, numbered, quoted, rewrite
from mcp_server.runtime.context import Context
from tests.conftest import ZooPackage
from tests.package.archives import changed
from tests.zoo.names import THOROUGH

WRAPPER = """extern "C"  void  cpp_fused_log_0(float* in_out_ptr0,
                       const float* in_ptr0,
                       const int64_t ks0);
void AOTInductorModel::run_impl(
    AtenTensorHandle* input_handles,
    DeviceStreamType stream
) {
    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 1);
    auto arg0_1 = std::move(inputs[0]);
    [[maybe_unused]] auto& w = constants_->at(0);
    auto arg0_1_size = arg0_1.sizes();
    int64_t s77 = arg0_1_size[0];
    const int64_t int_array_0[] = {s77, 16L};
    static constexpr int64_t int_array_1[] = {16L, 1L};
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    cpp_fused_log_0((float*)(buf0.data_ptr()), (const float*)(arg0_1.data_ptr()), s77);
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(buf0, arg0_1, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(w, 2, int_array_0, int_array_1, 0L))));
    AtenTensorHandle buf1_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_topk(buf0, 4L, 1L, 1, 1, &buf1_handle));
    RAIIAtenTensorHandle buf1(buf1_handle);
    output_handles[0] = buf1.release();
} // AOTInductorModel::run_impl
"""  # noqa: E501 - a wrapper's lines are long

MARKER = re.compile(r"aoti_debug")


def test_every_launch_gets_probes_on_its_own_line() -> None:
    """Three launches, three probes, the same number of lines, and every line ends as it did."""
    done = rewrite(read_wrapper(WRAPPER), "model")
    assert done.probed == (0, 1, 2) and done.skipped == ()
    old, new = WRAPPER.split("\n"), done.text.split("\n")
    assert len(old) == len(new)
    changed = [number for number, (a, b) in enumerate(zip(old, new, strict=True), 1) if a != b]
    assert changed == [7, 18, 19, 21]


def test_views_outputs_and_numbers_are_seen() -> None:
    """An inline view is bound to a variable, an output handle is read afterwards, a symbol is a number."""
    lines = rewrite(read_wrapper(WRAPPER), "model").text.split("\n")
    assert 'aoti_debug_launch.scalar("ks0", s77)' in lines[17]
    assert "auto&& aoti_debug_view_0 = wrap_with_raii_handle_if_needed(" in lines[18]
    assert (
        lines[18]
        .rstrip()
        .endswith("aoti_torch_cpu_mm_out(buf0, arg0_1, aoti_debug_view_0)); aoti_debug_launch.after(); }")
    )
    assert '.tensor("w", "mat2", 1, aoti_debug::handle(aoti_debug_view_0))' in lines[18]
    assert '.result("buf1", "ret0", 2, &buf1_handle)' in lines[20]


def test_a_refused_launch_is_left_alone_and_listed() -> None:
    """A reason from the compiler keeps the launch as it was."""
    done = rewrite(read_wrapper(WRAPPER), "model", {1: "because"})
    assert done.probed == (0, 2)
    assert [(s.launch, s.reason) for s in done.skipped] == [(1, "because")]
    assert done.text.split("\n")[18] == WRAPPER.split("\n")[18]


def test_a_compilers_errors_are_put_on_the_launch_of_their_line() -> None:
    """An error on a launch's line refuses that launch once; an error elsewhere refuses nothing."""
    places = ("19:5: error: no such thing", "19: error: again", "3:1: error: elsewhere")
    log = "".join(f"x.wrapper.cpp:{place}\n" for place in places)
    wrapper = read_wrapper(WRAPPER)
    found = blame(log, wrapper, {})
    assert found == {1: "the compiler refuses its probes: no such thing"}
    assert blame(log, wrapper, found) == {}


def test_a_weight_is_separated_unless_a_launch_writes_it() -> None:
    """A constant that is only read becomes an allocation of its own; a mutated buffer stays what it is."""
    separated = "auto w = aoti_debug::separate<RAIIAtenTensorHandle>(constants_->at(0));"
    assert separated in rewrite(read_wrapper(WRAPPER), "m", separate_weights=True).text
    mutated = WRAPPER.replace("(float*)(buf0.data_ptr())", "(float*)(w.data_ptr())")
    assert "separate<" not in rewrite(read_wrapper(mutated), "m", separate_weights=True).text


def test_names_out_of_the_package_cannot_leave_their_string() -> None:
    """A kernel name with quotes or control characters is made harmless."""
    assert quoted('a"; system("x"); //\n\\') == '"a?; system(?x?); //??"'


@given(st.text("abc\n", max_size=20), st.lists(st.integers(0, 20), max_size=5))
def test_edits_insert_exactly_what_they_hold(text: str, places: list[int]) -> None:
    """Removing the inserted marks gives the text back."""
    edits = [Edit(min(p, len(text)), min(p, len(text)), "#") for p in places]
    assert apply(text, edits).replace("#", "") == text


@st.composite
def mutilated(draw: st.DrawFn) -> str:
    """A wrapper with some spans removed, doubled, or replaced by noise."""
    text = WRAPPER
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 60)))
        text = (
            text[:start]
            + draw(st.sampled_from(["", text[start:end] * 2, "(", '"', "{", "/*", "}"]))
            + text[end:]
        )
    return text


@settings(max_examples=150)
@given(mutilated())
def test_a_damaged_wrapper_is_rewritten_by_insertion_only_or_refused_with_reasons(text: str) -> None:
    """No line moves, no launch is lost from the lists, and a launch without probes has its reason."""
    wrapper = read_wrapper(text)
    done = rewrite(wrapper, "model")
    assert done.text.count("\n") == text.count("\n")
    told = {s.launch: s.reason for s in done.skipped if s.launch is not None}
    assert sorted([*done.probed, *told]) == [number for number, _ in numbered(wrapper)]
    assert all(told.values())


def _wrapper(zoo: ZooPackage, name: str) -> Wrapper:
    return read_wrapper(open_package(zoo(name)).wrapper_text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ranker", "plugin", "loop", "branch"])
def test_real_wrappers_get_a_probe_for_every_launch(zoo: ZooPackage, name: str) -> None:
    """Kernels, shims, proxy calls and launches inside loops and branches."""
    wrapper = _wrapper(zoo, name)
    done = rewrite(wrapper, "model")
    assert done.skipped == () and len(done.probed) == len(wrapper.launches) > 0
    assert done.text.count("aoti_debug_launch.after()") == len(wrapper.launches)


EXAMPLES = 40 if THOROUGH else 2


def mutate(text: str, kind: str, number: int, start: float, length: int) -> str:
    """Change the launch `number`, or a span of the body, in one of the ways of `KINDS`."""
    wrapper = read_wrapper(text)
    launch = wrapper.launches[number % len(wrapper.launches)]
    head, statement, tail = text[: launch.start], text[launch.start : launch.end], text[launch.end :]
    if kind == "cut":
        at = wrapper.run.start + int(start * (wrapper.run.end - wrapper.run.start))
        return text[:at] + text[at + length :]
    return head + KINDS[kind](statement) + tail


KINDS: dict[str, Callable[[str], str]] = {
    "cut": str,
    "doubled": lambda statement: statement + " " + statement,
    "in a block": lambda statement: f"if (true) {{ {statement} }} else {{ (void)0; }}",
    "after a comment": lambda statement: f'/* a "comment( */ {statement}',
    "over lines": lambda statement: statement.replace(", ", ",\n        "),
    "in parentheses": lambda statement: re.sub(
        r"\(const (\w+)\*\)\((\w+)\.", r"(const \1*)((\2).", statement
    ),
    "declared": lambda statement: f"auto status = (0, 0); {statement}",
    "in a macro": lambda statement: f"#define LAUNCH {statement}\n    LAUNCH\n",
    "in a lambda": lambda statement: f"[&]() {{ {statement} }}();",
}

mutants = st.builds(
    lambda *choice: choice,
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 20),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 60),
)


def compiles(text: str, context: Context) -> bool:
    """Whether the wrapper is a program at all, without probes."""
    toolchain = anyio.run(find_toolchain, context.python, context)
    source = context.directory / "mutant.cpp"
    source.write_text(text)
    recorded = read_recorded(text)
    compiler = choose_compiler(recorded, os.environ)
    argv = compile_command(compiler, safe_flags(recorded), toolchain, str(source), "x.o", ("-fsyntax-only",))
    return subprocess.run(argv, capture_output=True, cwd=source.parent, check=False).returncode == 0


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutants)
def test_a_mutated_wrapper_is_rebuilt_or_refused_with_a_reason(
    zoo: ZooPackage,
    cache: Cache,
    tmp_path_factory: pytest.TempPathFactory,
    mutant: tuple[str, int, float, int],
) -> None:
    """Rebuilt: every launch has probes or a reason. Refused: it is no program without probes either."""
    directory = tmp_path_factory.mktemp("mutant")
    text = mutate(open_package(zoo("ranker")).wrapper_text, *mutant)

    def spoil(members: dict[str, bytes]) -> None:
        name = next(n for n in members if n.endswith(".wrapper.cpp"))
        members[name] = text.encode()

    package = changed(zoo("ranker"), directory / "mutant.pt2", spoil)
    context = Context(directory, Path(sys.executable))
    try:
        done = anyio.run(lambda: instrument(package, Options(), context, cache=cache))
    except ProblemError as problem:
        assert problem.next_call and "error" in problem.what
        assert not compiles(text, context)
        return
    skipped = [one for one in done.skipped if one.launch is not None]
    assert all(one.reason for one in done.skipped)
    assert done.probed["model"] + len(skipped) == len(numbered(read_wrapper(text)))
