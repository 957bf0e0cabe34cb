"""The address book finds what an address belongs to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_server.evidence.journal import JournalArgument, JournalLaunch, TensorFacts
from mcp_server.instrument.addresses import AddressBook, logical_index

BASE = 0x7FCFB4863B00


def tensor(
    start: int, shape: tuple[int, ...], stride: tuple[int, ...], size: int, offset: int = 0
) -> TensorFacts:
    return TensorFacts(start + 4 * offset, "float32", 4, "cuda:0", shape, stride, offset, size)


def launch(sequence: int, **tensors: TensorFacts) -> JournalLaunch:
    arguments = tuple(JournalArgument(name, name, "read", facts) for name, facts in tensors.items())
    return JournalLaunch((1, 2, 0), sequence, sequence, f"k{sequence}", 1, 0, 1, arguments)


POS = tensor(BASE, (512, 64), (64, 1), 512 * 64 * 4)
HALF = tensor(BASE + (1 << 20), (8, 8), (8, 1), 512, offset=64)
BOOK = AddressBook(
    [launch(0, pos=POS), launch(1, pos=POS, half=HALF), launch(2, half=HALF), launch(3, again=POS)]
)


def test_an_address_inside_gives_buffer_element_and_index() -> None:
    """Byte 4*(64*3+5) of a (512, 64) tensor is element 197, index (3, 5)."""
    place = BOOK.locate(BASE + 4 * (64 * 3 + 5), 0).owners[0]
    assert (place.span.name, place.element, place.index, place.distance_bytes) == ("pos", 197, (3, 5), 0)


def test_a_reused_allocation_has_an_owner_for_each_time() -> None:
    """`again` lies where `pos` was: the launch decides which comes first."""
    assert [p.span.name for p in BOOK.locate(BASE, 1).owners] == ["pos", "again"]
    assert [p.span.name for p in BOOK.locate(BASE, 3).owners] == ["again", "pos"]
    early = BOOK.locate(BASE, 1).owners
    assert (early[0].live, early[1].live) == (True, False)


def test_a_view_is_placed_by_its_storage_and_counted_from_its_first_element() -> None:
    """The 64 elements before a view's first belong to its storage and have negative offsets."""
    place = BOOK.locate(HALF.storage_start, 1).owners[0]
    assert (place.inside, place.element, place.offset_bytes) == (True, -64, -256)


def test_an_address_far_outside_is_a_row_of_an_argument() -> None:
    """2,048,002,048 bytes past a (512, 64) float32 tensor is row 8,000,008: seen in a memcheck report."""
    places = {p.span.name: p for p in BOOK.against_arguments(0x7FD02E984300, 0)}
    assert places["pos"].offset_bytes == 2_048_002_048
    assert places["pos"].index == (8_000_008, 0)
    assert not BOOK.locate(0x7FD02E984300).owners


def test_neighbours_are_the_nearest_that_are_live() -> None:
    """Just past `pos`, its own end is one byte away; `half` is not live at launch 0."""
    found = BOOK.locate(BASE + 512 * 64 * 4, 0)
    assert [(p.span.name, p.distance_bytes) for p in found.neighbours] == [("pos", 1)]


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
