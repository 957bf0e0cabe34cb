"""The dataflow: last writers, backward and forward slices, over aliases, reuse, branches and loops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.package.dataflow import Dataflow
from mcp_server.package.wrapper import Wrapper, read_wrapper
from tests.conftest import ZooPackage
from tests.package.made_wrapper import make_wrapper
from tests.package.summaries import recorded
from tests.package.test_wrapper import read
from tests.zoo.names import thorough

_HEAD = """void AOTInductorModel::run_impl(AtenTensorHandle* input_handles) {
    auto arg0_1 = std::move(inputs[0]);
    auto arg1_1 = std::move(inputs[1]);
    [[maybe_unused]] auto& weight = constants_->at(0);
    static constexpr int64_t int_array_0[] = {8L, };
    static constexpr int64_t int_array_1[] = {1L, };
    static constexpr int64_t int_array_2[] = {4L, };
"""


def body(*lines: str) -> Wrapper:
    """A wrapper of hand-written statements."""
    return read_wrapper(_HEAD + "\n".join(f"    {line}" for line in lines) + "\n}\n")


def allocate(name: str) -> str:
    return (
        f"AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_0, int_array_1, "
        f"cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &{name}_handle)); "
        f"RAIIAtenTensorHandle {name}({name}_handle);"
    )


def mm(out: str, left: str, right: str) -> str:
    return f"AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out({out}, {left}, {right}));"


def view(base: str, offset: int) -> str:
    return (
        "wrap_with_raii_handle_if_needed("
        f"reinterpret_tensor_wrapper({base}, 1, int_array_2, int_array_1, {offset}L))"
    )


def writers(flow: Dataflow, name: str, launch: int | None = None) -> list[int | None]:
    return [step.launch for step in flow.last_writers(name, launch)]


def test_a_reused_buffer_forgets_its_first_life() -> None:
    """After std::move and a full write, the value of the earlier life is no input any more."""
    wrapper = body(
        allocate("buf0"),
        mm("buf0", "arg0_1", "weight"),
        "auto buf1 = std::move(buf0);  // reuse",
        mm("buf1", "arg1_1", "weight"),
        "output_handles[0] = buf1.release();",
    )
    behind = Dataflow(wrapper.run).backward("buf1")
    assert (behind.launches, behind.inputs, behind.constants) == ((1,), ("arg1_1",), ("weight",))


def test_views_of_one_buffer_meet_only_where_they_overlap() -> None:
    """Two halves of a buffer are written apart: each half has its own writer, the whole has both."""
    wrapper = body(
        allocate("buf0"),
        f"auto buf1 = {view('buf0', 0)};  // alias",
        f"auto buf2 = {view('buf0', 4)};  // alias",
        mm("buf1", "arg0_1", "weight"),
        mm("buf2", "arg1_1", "weight"),
    )
    flow = Dataflow(wrapper.run)
    assert writers(flow, "buf1") == [0]
    assert writers(flow, "buf2") == [1]
    assert sorted(n for n in writers(flow, "buf0") if n is not None) == [0, 1]
    assert flow.backward("buf1").inputs == ("arg0_1",)


def test_a_view_of_a_view_adds_the_offsets() -> None:
    """The second half of a buffer, seen through a view at offset zero of it, does not meet the first half."""
    wrapper = body(
        allocate("buf0"),
        f"auto buf1 = {view('buf0', 0)};  // alias",
        f"auto buf2 = {view('buf0', 4)};  // alias",
        f"auto buf3 = {view('buf2', 0)};  // alias",
        mm("buf1", "arg0_1", "weight"),
        mm("buf2", "arg1_1", "weight"),
        mm("buf0", view("buf2", 0), view("buf3", 0)),
    )
    flow = Dataflow(wrapper.run)
    assert wrapper.buffers["buf3"].offset == "4L"
    assert flow.backward_from(2).inputs == ("arg1_1",)


def test_a_branch_may_or_may_not_write() -> None:
    """After a conditional write, the value may be the branch's or the one before."""
    wrapper = body(
        allocate("buf0"),
        mm("buf0", "arg0_1", "weight"),
        "bool arg1_1_scalar;",
        "AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_item_bool(arg1_1, &arg1_1_scalar));",
        "if (arg1_1_scalar) {",
        mm("buf0", "weight", "weight"),
        "}",
    )
    flow = Dataflow(wrapper.run)
    assert writers(flow, "buf0") == [1, 0]
    assert set(flow.backward("buf0").inputs) == {"arg0_1", "arg1_1"}


def test_memory_that_nothing_set() -> None:
    """A buffer that is read before anything wrote it is named."""
    wrapper = body(allocate("buf0"), allocate("buf1"), mm("buf1", "buf0", "weight"))
    assert Dataflow(wrapper.run).backward("buf1").unset == ("buf0",)


def test_forward_stops_at_a_full_write() -> None:
    """Taint ends where a buffer is overwritten with something clean."""
    wrapper = body(
        allocate("buf0"),
        mm("buf0", "arg0_1", "weight"),
        mm("buf0", "arg1_1", "weight"),
        "output_handles[0] = buf0.release();",
    )
    flow = Dataflow(wrapper.run)
    assert (flow.forward(["arg0_1"]).launches, flow.forward(["arg0_1"]).outputs) == ((0,), ())
    assert (flow.forward(["arg1_1"]).launches, flow.forward(["arg1_1"]).outputs) == ((1,), (0,))


def test_a_partial_write_keeps_what_was_there() -> None:
    """A user's kernel that stores at data-dependent places leaves the zeros of the first launch."""
    flow = Dataflow(recorded("user_spread").run)
    assert flow.backward_from(3).launches == (0, 1, 2, 3)


def test_a_loop_hands_values_back() -> None:
    """In a loop, the first launch reads what the last one left; the exit condition is an input of it all."""
    flow = Dataflow(recorded("loop").run)
    assert flow.backward("buf3").launches == (0, 1, 2, 3, 4)
    assert flow.backward("buf3").inputs == ("arg0_1", "arg1_1")
    assert flow.forward(["arg0_1"]).launches == (1, 2, 4)
    written = [use.name for use in flow.steps[flow.order_of[3]].writes]
    assert flow.forward(written, 3).launches == (0, 1, 2, 3, 4)


def test_a_loop_does_not_reach_what_ran_before_it() -> None:
    """Memory that a loop taints and that had an earlier life does not taint the readers of that life."""
    wrapper = body(
        allocate("buf0"),
        mm("buf0", "weight", "weight"),
        allocate("buf1"),
        mm("buf1", "buf0", "weight"),
        "auto buf2 = std::move(buf0);  // reuse",
        "while (1) {",
        mm("buf2", "arg0_1", "weight"),
        "}",
    )
    assert Dataflow(wrapper.run).forward(["arg0_1"]).launches == (2,)


Part = tuple[int, int | None]
"""A buffer by its number, and the offset of the half of it that a view shows."""
_PARTS = st.tuples(st.integers(0, 2), st.sampled_from([None, 0, 4]))


@given(st.lists(st.tuples(_PARTS, _PARTS, _PARTS), min_size=3, max_size=8), st.booleans())
def test_a_slice_is_what_the_elements_depend_on(calls: list[tuple[Part, Part, Part]], views: bool) -> None:
    """Against memory in which each element remembers the launches and inputs that went into it.

    With views a slice may have more, since a part that is overwritten does not end an earlier value.
    """
    names = ("arg0_1", "buf0", "buf1")
    lines = [allocate(name) for name in names[1:]]
    memory: dict[str, list[set[int | str]]] = {name: [set() for _ in range(8)] for name in names}
    memory["arg0_1"] = [{"arg0_1"} for _ in range(8)]
    behind: list[set[int | str]] = []
    for number, parts in enumerate(calls):
        places = []
        for at, offset in parts:
            shown = slice(offset, offset + 4) if views and offset is not None else slice(8)
            places.append((names[at], shown))
        (out, written), *read = places
        read_from = [each for name, part in read for each in memory[name][part]]
        behind.append(set[int | str]({number}).union(*read_from))
        memory[out][written] = [behind[-1]] * len(memory[out][written])
        lines.append(mm(*(view(n, part.start or 0) if part != slice(8) else n for n, part in places)))
    flow = Dataflow(body(*lines).run)
    for number, expected in enumerate(behind):
        found = flow.backward_from(number)
        depends = {*found.launches, *found.inputs}
        assert depends >= expected if views else depends == expected
    reached, due = set(flow.forward(["arg0_1"]).launches), {n for n, b in enumerate(behind) if "arg0_1" in b}
    assert reached >= due if views else reached == due


def test_a_long_chain() -> None:
    """Everything that a chain computes depends on all launches before it."""
    wrapper = read_wrapper(make_wrapper(50))
    flow = Dataflow(wrapper.run)
    assert flow.backward("buf50").launches == tuple(range(50))
    assert flow.forward(["arg1_1"]).launches == tuple(range(50))


@thorough
@pytest.mark.slow
def test_branches_of_a_conditional(zoo: ZooPackage) -> None:
    """The output depends on both branches and on the predicate's launch."""
    flow = Dataflow(read(zoo, "branch").run)
    assert flow.backward("buf4").launches == tuple(range(7))
    assert flow.backward("buf4").inputs == ("arg0_1",)


@pytest.mark.slow
def test_forward_and_backward_agree(zoo: ZooPackage) -> None:
    """A launch lies in the forward slice of an input exactly if that input lies behind the launch."""
    for name in ("attention", "jagged", "scatter", "branch", "select"):
        wrapper = read(zoo, name)
        flow = Dataflow(wrapper.run)
        for buffer in wrapper.inputs().values():
            reached = set(flow.forward([buffer.name]).launches)
            behind = {n.index for n in wrapper.launches if buffer.name in flow.backward_from(n.index).inputs}
            assert reached == behind
