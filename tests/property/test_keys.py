"""Cache keys: equal rows meet, different ones never do, wherever in a batch they stand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from firstline_core.processing import GENERATION
from firstline_core.types import DATATYPES, InferRequest, Tensor, join_rows, slice_rows, take_rows
from firstline_edge.requests.context import content_digests, result_key, rows_of

NUMERIC = [dtype for name, dtype in DATATYPES.items() if name != "BYTES"]


def encoded(*elements: bytes, shape: tuple[int, ...] | None = None) -> Tensor:
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return Tensor("x", array.reshape(shape or (-1,)))


def digests(tensor: Tensor, rows: Sequence[int] | None = None) -> list[bytes]:
    inputs = {tensor.name: tensor.array}
    return content_digests(inputs if rows is None else take_rows(inputs, rows), [tensor.name])


@given(st.data())
def test_a_rows_key_does_not_depend_on_its_batch(data: st.DataObject) -> None:
    shape = data.draw(arrays.array_shapes(min_dims=1, max_dims=4, max_side=4))
    array = data.draw(arrays.arrays(data.draw(st.sampled_from(NUMERIC)), shape))
    tensor = Tensor("x", array)
    order = data.draw(st.permutations(range(shape[0])))
    together = digests(tensor)
    assert [digests(tensor, [row])[0] for row in range(shape[0])] == together
    assert digests(tensor, order) == [together[row] for row in order]


@given(st.lists(st.binary(max_size=8), min_size=2, max_size=6))
def test_encoded_rows_are_equal_exactly_where_their_bytes_are(elements: list[bytes]) -> None:
    found = digests(encoded(*elements))
    for a, one in zip(elements, found, strict=True):
        for b, other in zip(elements, found, strict=True):
            assert (a == b) == (one == other)


@given(st.binary(max_size=6), st.binary(max_size=6), st.binary(max_size=6), st.binary(max_size=6))
def test_elements_of_a_row_do_not_run_together(a: bytes, b: bytes, c: bytes, d: bytes) -> None:
    one = digests(encoded(a, b, shape=(1, 2)))
    other = digests(encoded(c, d, shape=(1, 2)))
    assert ((a, b) == (c, d)) == (one == other)


CONTENT = st.binary(min_size=2, max_size=2)


@given(st.text(max_size=8), st.text(max_size=8), CONTENT, CONTENT)
def test_digest_and_content_do_not_run_together(digest: str, other: str, a: bytes, b: bytes) -> None:
    assert ((digest, a) == (other, b)) == (result_key(a, digest) == result_key(b, other))


def test_a_cache_gives_no_answer_of_another_generation_of_the_processing(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = result_key(b"content", "digest")
    assert result_key(b"content", "digest") == earlier
    monkeypatch.setattr("firstline_core.processing.GENERATION", GENERATION + 1)
    assert result_key(b"content", "digest") != earlier


def test_name_datatype_and_shape_are_part_of_the_key() -> None:
    zeros = np.zeros((1, 4), np.float32)
    tensors = [
        Tensor("x", zeros),
        Tensor("y", zeros),
        Tensor("x", zeros.view(np.int32)),
        Tensor("x", zeros.reshape(1, 2, 2)),
        Tensor("x", zeros.view(np.uint8)),
        encoded(b"\0" * 16),
    ]
    assert len({digests(tensor)[0] for tensor in tensors}) == len(tensors)


def test_keys_are_full_width() -> None:
    assert len(digests(encoded(b"a"))[0]) == 32


COLUMNS: Any = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1
)


def columns(of: dict[str, list[int]]) -> dict[str, Any]:
    """Inputs of three rows, in the order of their names as a manifest has them; c is text."""
    arrays = {name: np.array(values, np.int64)[:, None] for name, values in sorted(of.items()) if name != "c"}
    if "c" in of:
        arrays["c"] = np.array([b"x" * value for value in of["c"]], np.object_)
    return arrays


@given(COLUMNS, COLUMNS, st.sets(st.sampled_from(["a", "b", "c"]), min_size=1))
def test_equal_inputs_share_a_key(one: dict[str, list[int]], other: dict[str, list[int]], names: set[str]) -> None:
    read_of_one, read_of_other = ({key: of[key] for key in of.keys() & names} for of in (one, other))
    if not read_of_one or not read_of_other:
        return
    found, others = content_digests(columns(one), names), content_digests(columns(other), names)
    for row, digest in enumerate(found):
        for place, second in enumerate(others):
            same = {key: values[row] for key, values in read_of_one.items()} == {
                key: values[place] for key, values in read_of_other.items()
            }
            assert (digest == second) == same


@given(COLUMNS, st.permutations(range(3)))
def test_rows_of_several_inputs_are_cut_and_joined_alike(of: dict[str, list[int]], order: list[int]) -> None:
    inputs, names = columns(of), set(of)
    together = content_digests(inputs, names)
    turned = take_rows(inputs, order)
    assert content_digests(turned, names) == [together[row] for row in order]
    joined = join_rows([slice_rows(turned, row, row + 1) for row in range(3)])
    assert list(joined) == list(inputs)
    assert content_digests(joined, names) == content_digests(turned, names)
    request = InferRequest("m", tuple(Tensor(name, array) for name, array in inputs.items()), "")
    assert content_digests(request.take(order).arrays, names) == content_digests(turned, names)


@given(COLUMNS)
def test_a_row_has_a_key_for_each_model(of: dict[str, list[int]]) -> None:
    inputs = columns(of)
    edge_names, full_names = list(of)[:1], frozenset(of)
    rows = rows_of(inputs, edge_names, full_names, "edge")
    assert [row.content for row in rows] == content_digests(inputs, full_names)
    assert [row.edge_key for row in rows] == [
        result_key(content, "edge") for content in content_digests(inputs, edge_names)
    ]
