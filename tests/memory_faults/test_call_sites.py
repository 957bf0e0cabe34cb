"""Host frames to launches, through the machine code of the library, and offsets to elements."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from mcp_server.memory_faults.join import match_sites, read_call_sites
from mcp_server.memory_faults.situation import logical_index
from tests.memory_faults.support import recorded

TYPES = (
    "(CUfunc_st*, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, void**, CUstream_st*)"
)
RUN = "torch::aot_inductor::AOTInductorModel::run_impl(AtenTensorOpaque**, AtenTensorOpaque**)"


def listing(*targets: str) -> list[str]:
    """What objdump prints for a run_impl that calls these, between two other functions."""
    calls = []
    for number, target in enumerate(targets):
        at = 0x1BFA7 + number * 0x100
        calls += [f"   {at:x}:\tcall   1a7c1 <{target}>", f"   {at + 5:x}:\tadd    $0x10,%rsp"]
    return [
        f"0000000000017500 <{RUN}@plt>:",
        f"   17500:\tcall   1a7c1 <launchKernel{TYPES}>",
        f"000000000001b936 <{RUN}>:",
        "   1b936:\tcall   16000 <aoti_torch_empty_strided@plt>",
        *calls,
        "",
        "0000000000020000 <other>:",
        f"   20000:\tcall   1a7c1 <launchKernel{TYPES}>",
    ]


def test_calls_of_run_impl_pair_off_with_launches(tmp_path: Path) -> None:
    """Five launching calls, five Triton launches: the third call is launch 3, not 2."""
    launches = recorded("user_shift", tmp_path).wrapper.launches
    inlined = f"launchKernel{TYPES}"
    named = "void call_triton_poi_fused_sin_0<torch::aot_inductor::RAIIAtenTensorHandle>(int const&)"
    sites = read_call_sites(listing(inlined, inlined, named, inlined, inlined))
    assert match_sites(sites, launches) == {0x1BFAC: 0, 0x1C0AC: 2, 0x1C1AC: 3, 0x1C2AC: 4, 0x1C3AC: 5}


def test_what_does_not_pair_off_is_not_used(tmp_path: Path) -> None:
    """A call too few, or another kernel at that place: no answer rather than a wrong one."""
    launches = recorded("user_shift", tmp_path).wrapper.launches
    inlined = f"launchKernel{TYPES}"
    assert match_sites(read_call_sites(listing(inlined)), launches) == {}
    wrong = read_call_sites(listing("void call_other<int>(int)", *[inlined] * 4))
    assert match_sites(wrong, launches) == {}


# Which element of a tensor an offset is.


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4).flatmap(
        lambda shape: st.tuples(st.just(shape), st.tuples(*(st.integers(0, n - 1) for n in shape)))
    )
)
def test_the_index_of_a_contiguous_element_is_found_again(case: tuple[list[int], tuple[int, ...]]) -> None:
    """logical_index inverts the offset that strides give, for every element of a dense tensor."""
    shape, index = case
    stride = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        stride[dim] = stride[dim + 1] * shape[dim + 1]
    offset = sum(i * s for i, s in zip(index, stride, strict=True))
    assert logical_index(offset, tuple(shape), tuple(stride)) == index


def test_an_expanded_dimension_has_no_index() -> None:
    """Stride 0 maps many elements to one address."""
    assert logical_index(3, (4, 4), (0, 1)) is None
