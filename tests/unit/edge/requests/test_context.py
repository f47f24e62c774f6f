"""Answers made of rows, corrections put into them, and the file form of a row's output."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec.structs import replace
from support import escalations

from firstline_core.tasks.classification import Classification
from firstline_core.types import (
    DATATYPES,
    Array,
    Arrays,
    Attempt,
    Reason,
    RowAnswer,
    Status,
    Tensor,
    Tier,
    payload_bytes,
)
from firstline_edge.requests.context import ModelOutput, summarise
from firstline_edge.requests.full_answers import merge


def row(tier: Tier, reason: Reason = Reason.CONFIDENT, status: Status = Status.FINAL, **fields: object) -> RowAnswer:
    defaults = {"certified": tier is Tier.CLOUD, "confidence": 0.5, "model_digest": tier.value}
    return RowAnswer(tier, reason, status, **(defaults | fields))


def test_one_row_is_its_own_summary() -> None:
    answer = summarise("id", [row(Tier.CLOUD, Reason.UNCERTAIN)], [Attempt(Tier.CLOUD, "ok", 1)], durable=False)
    assert (answer.tier, answer.reason, answer.certified, answer.rows) == (Tier.CLOUD, Reason.UNCERTAIN, True, ())
    assert answer.attempts == (Attempt(Tier.CLOUD, "ok", 1),)


def test_a_final_batch_names_its_farthest_tier() -> None:
    rows = [row(Tier.CACHE), row(Tier.CLOUD, Reason.UNCERTAIN, confidence=0.2), row(Tier.EDGE, confidence=None)]
    answer = summarise("id", rows, [], durable=False)
    assert (answer.tier, answer.reason, answer.model_digest) == (Tier.CLOUD, Reason.UNCERTAIN, "cloud")
    assert (answer.certified, answer.confidence, len(answer.rows)) == (False, 0.2, 3)


def test_a_provisional_row_gives_the_reason() -> None:
    rows = [row(Tier.CLOUD, Reason.UNCERTAIN), row(Tier.EDGE, Reason.LINK_DOWN, Status.PROVISIONAL)]
    answer = summarise("id", rows, [], durable=True)
    assert (answer.status, answer.reason, answer.tier) == (Status.PROVISIONAL, Reason.LINK_DOWN, Tier.CLOUD)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_row_that_falls_short_gives_the_reason(order: tuple[int, int]) -> None:
    for short in (Reason.OUTBOX_FULL, Reason.CLOUD_ERROR, Reason.LINK_DOWN, Reason.DEADLINE, Reason.BUDGET):
        for other in (row(Tier.EDGE), row(Tier.CLOUD, Reason.UNCERTAIN)):
            rows = [other, row(Tier.EDGE, short)]
            answer = summarise("id", [rows[position] for position in order], [], durable=False)
            assert (answer.status, answer.reason, answer.tier) == (Status.FINAL, short, other.tier)
    provisional = row(Tier.EDGE, Reason.DEADLINE, Status.PROVISIONAL)
    rows = [row(Tier.EDGE, Reason.BUDGET), provisional]
    assert summarise("id", [rows[position] for position in order], [], durable=True).reason is Reason.DEADLINE


TASK = Classification(tuple("abcdefghij"))


def one_hot(*classes: int) -> Array:
    return np.eye(10, dtype=np.float32)[list(classes)]


class TestMerge:
    def test_only_the_corrected_rows_change(self) -> None:
        original = escalations.request(3)
        first = escalations.response(original, Status.PROVISIONAL, value=0.25)
        edge_row = replace(first.answer.rows[1], status=Status.FINAL, reason=Reason.CONFIDENT)
        answer = replace(first.answer, rows=(first.answer.rows[0], edge_row, first.answer.rows[2]))
        correction = escalations.response(original.take([0, 2]), value=0.75)
        merged = merge(replace(first, answer=answer), (0, 2), correction, TASK)
        assert merged.output("probabilities")[:, 0].tolist() == [0.75, 0.25, 0.75]
        assert [row.tier for row in merged.answer.rows] == [Tier.CLOUD, Tier.EDGE, Tier.CLOUD]
        assert [row.certified for row in merged.answer.rows] == [True, False, True]
        assert (merged.answer.status, merged.answer.request_id) == (Status.FINAL, original.request_id)
        assert (merged.answer.tier, merged.answer.reason) == (Tier.CLOUD, Reason.UNCERTAIN)
        assert [attempt.tier for attempt in merged.answer.attempts] == [Tier.EDGE, Tier.CLOUD]
        assert first.output("probabilities")[:, 0].tolist() == [0.25] * 3

    def test_a_single_row(self) -> None:
        original = escalations.request(id="mine")
        first = escalations.response(original, Status.PROVISIONAL)
        merged = merge(first, (0,), escalations.response(original, value=0.9), TASK)
        assert (merged.answer.status, merged.answer.rows, merged.id) == (Status.FINAL, (), "mine")
        assert (merged.answer.certified, merged.answer.model_digest) == (True, "f" * 64)
        assert merged.answer.confidence == 0.4  # the edge model's, as it was

    @pytest.mark.parametrize("task", [TASK, None])
    @pytest.mark.parametrize(("likeliest", "changed"), [((0, 3), False), ((0, 4), True), ((5, 3), True)])
    def test_changed_is_set_if_a_corrected_row_has_another_class(
        self, likeliest: tuple[int, int], changed: bool, task: Classification | None
    ) -> None:
        """Row 1 was kept: what the full model would have said of it plays no part."""
        original = escalations.request(3)
        first = replace(
            escalations.response(original, Status.PROVISIONAL), outputs=(Tensor("probabilities", one_hot(0, 1, 3)),)
        )
        correction = escalations.response(original.take([0, 2]))
        full = replace(correction, outputs=(Tensor("probabilities", one_hot(*likeliest)),))
        merged = merge(first, (0, 2), full, task)
        assert (first.answer.changed, merged.answer.changed) == (None, changed)

    def test_without_its_task_an_answer_changes_with_any_output(self) -> None:
        original = escalations.request()
        first, full = escalations.response(original, Status.PROVISIONAL), escalations.response(original, value=0.3)
        changed = [merge(first, (0,), full, task).answer.changed for task in (TASK, None)]
        assert changed == [False, True]

    @pytest.mark.parametrize(("text", "changed"), [(b"one", False), (b"two", True)])
    def test_every_output_is_corrected(self, text: bytes, changed: bool) -> None:
        def outputs(*rows: bytes) -> tuple[Tensor, ...]:
            return Tensor("text", np.array(rows, object)), Tensor("values", np.full((len(rows), 2), 0.5, np.float32))

        original = escalations.request(2)
        first = replace(escalations.response(original, Status.PROVISIONAL), outputs=outputs(b"zero", b"one"))
        full = replace(escalations.response(original.take([1])), outputs=outputs(text))
        merged = merge(first, (1,), full, None)
        assert merged.output("text").tolist() == [b"zero", text]
        assert merged.output("values").shape == (2, 2)
        assert merged.answer is not None and merged.answer.changed is changed


NUMBERS = st.sampled_from([dtype for dtype in DATATYPES.values() if not dtype.hasobject])
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3).map(lambda shape: (1, *shape))
TEXTS = st.lists(st.binary(max_size=9), max_size=3).map(lambda elements: np.array([elements], object))
TENSORS: Any = st.one_of(NUMBERS.flatmap(lambda dtype: arrays.arrays(dtype, SHAPES)), TEXTS)
OUTPUTS: Any = st.builds(
    ModelOutput,
    st.dictionaries(st.text(min_size=1, max_size=9), TENSORS, min_size=1, max_size=3),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.floats(0, 1),
)


def assert_equal(found: Arrays, expected: Arrays) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


class TestModelOutput:
    @given(OUTPUTS)
    def test_the_encoded_form_comes_back(self, output: ModelOutput) -> None:
        found = ModelOutput.decode(output.encode())
        assert (found.score, found.value) == (output.score, output.value)
        assert_equal(found.outputs, output.outputs)

    @given(OUTPUTS, st.data())
    def test_a_cut_encoding_is_none(self, output: ModelOutput, data: st.DataObject) -> None:
        encoded = output.encode()
        assert ModelOutput.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))]) is None
        assert ModelOutput.decode(encoded + b"\0") is None

    @given(OUTPUTS, st.data())
    def test_a_damaged_encoding_is_none_or_an_output(self, output: ModelOutput, data: st.DataObject) -> None:
        encoded = bytearray(output.encode())
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
        found = ModelOutput.decode(bytes(encoded))
        assert found is None or payload_bytes(found.outputs.values()) >= 0

    @given(st.binary(max_size=40))
    def test_other_bytes_are_none(self, encoded: bytes) -> None:
        assert ModelOutput.decode(b"\x01" + encoded) is None  # the format of version 1
