"""Which element of a tensor an offset is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_server.memory_faults.situation import logical_index


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
