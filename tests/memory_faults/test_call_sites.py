"""Host frames to launches, through the machine code of the library."""

from __future__ import annotations

from pathlib import Path

from mcp_server.memory_faults.join import match_sites, read_call_sites
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
