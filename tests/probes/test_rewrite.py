"""Probes are inserted without moving a line, also in a mutated wrapper; what cannot get one is listed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Options
from mcp_server.probes.rewrite import numbered, rewrite
from mcp_server.runtime.context import Context
from tests.conftest import ZooPackage
from tests.package.archives import Members, changed, name_ending
from tests.package.summaries import WRAPPERS
from tests.recorded import RECORDINGS
from tests.zoo.names import few, thorough

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


@st.composite
def mutilated(draw: st.DrawFn) -> str:
    """A wrapper with some spans removed, doubled, or replaced by noise."""
    text = WRAPPER
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 60)))
        put = draw(st.sampled_from(["", text[start:end] * 2, "(", '"', "{", "/*", "}"]))
        text = text[:start] + put + text[end:]
    return text


@settings(max_examples=few(150))
@given(mutilated())
def test_a_damaged_wrapper_is_rewritten_by_insertion_only_or_refused_with_reasons(text: str) -> None:
    """No line moves, no launch is lost from the lists, and a launch without probes has its reason."""
    wrapper = read_wrapper(text)
    done = rewrite(wrapper, "model")
    assert done.text.count("\n") == text.count("\n")
    told = {s.launch: s.reason for s in done.skipped if s.launch is not None}
    assert sorted([*done.probed, *told]) == [number for number, _ in numbered(wrapper)]
    assert all(told.values())


@pytest.mark.parametrize("path", sorted(WRAPPERS.glob("*-cpu.cpp")), ids=lambda path: path.stem)
def test_real_wrappers_get_a_probe_for_every_launch(path: Path) -> None:
    """Kernels, shims, proxy calls and launches inside loops and branches."""
    kernels = RECORDINGS / "kernels" / path.name
    wrapper = read_wrapper(path.read_text(), kernels.read_text() if kernels.exists() else "")
    done = rewrite(wrapper, "model")
    launches = len(numbered(wrapper))  # with those of constant folding
    assert done.skipped == () and len(done.probed) == launches > 0
    assert done.text.count("aoti_debug_launch.after()") == launches


KINDS: dict[str, Callable[[str], str]] = {
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


@thorough
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_wrapper_is_rebuilt(
    zoo: ZooPackage, cache: Cache, context: Context, tmp_path: Path, kind: str, number: int
) -> None:
    """A kernel's launch or a library's call in another form: every launch has probes, or a reason."""
    text = open_package(zoo("ranker")).wrapper_text
    launch = read_wrapper(text).launches[number]
    text = text[: launch.start] + KINDS[kind](text[launch.start : launch.end]) + text[launch.end :]

    def spoil(members: Members) -> None:
        members[name_ending(members, ".wrapper.cpp")] = text.encode()

    package = changed(zoo("ranker"), tmp_path / "mutant.pt2", spoil)
    done = anyio.run(lambda: instrument(package, Options(), context, cache=cache))
    skipped = [one for one in done.skipped if one.launch is not None]
    assert all(one.reason for one in done.skipped)
    assert done.probed["model"] + len(skipped) == len(numbered(read_wrapper(text)))
