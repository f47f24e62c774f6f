"""Answers made of rows, and corrections put into them."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from support import escalations

from firstline_core.types import Array, Attempt, Reason, RowAnswer, Status, Tensor, Tier
from firstline_edge.requests.context import summarise
from firstline_edge.requests.full_answers import merge


def row(tier: Tier, reason: Reason = Reason.CONFIDENT, status: Status = Status.FINAL, **fields: object) -> RowAnswer:
    known = {"certified": tier is Tier.CLOUD, "confidence": 0.5, "model_digest": tier.value}
    return RowAnswer(tier, reason, status, **(known | fields))  # type: ignore[arg-type]


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


def one_hot(*classes: int) -> Array:
    return np.eye(10, dtype=np.float32)[list(classes)]


class TestMerge:
    def test_only_the_corrected_rows_change(self) -> None:
        asked = escalations.request(3)
        first = escalations.response(asked, Status.PROVISIONAL, value=0.25)
        kept = replace(first.answer.rows[1], status=Status.FINAL, reason=Reason.CONFIDENT)
        answer = replace(first.answer, rows=(first.answer.rows[0], kept, first.answer.rows[2]))
        correction = escalations.response(asked.take([0, 2]), value=0.75)
        merged = merge(replace(first, answer=answer), (0, 2), correction)
        assert merged.output("probabilities")[:, 0].tolist() == [0.75, 0.25, 0.75]
        assert [said.tier for said in merged.answer.rows] == [Tier.CLOUD, Tier.EDGE, Tier.CLOUD]
        assert [said.certified for said in merged.answer.rows] == [True, False, True]
        assert (merged.answer.status, merged.answer.request_id) == (Status.FINAL, asked.request_id)
        assert (merged.answer.tier, merged.answer.reason) == (Tier.CLOUD, Reason.UNCERTAIN)
        assert [attempt.tier for attempt in merged.answer.attempts] == [Tier.EDGE, Tier.CLOUD]
        assert first.output("probabilities")[:, 0].tolist() == [0.25] * 3

    def test_a_single_row(self) -> None:
        asked = escalations.request(id="mine")
        merged = merge(escalations.response(asked, Status.PROVISIONAL), (0,), escalations.response(asked, value=0.9))
        assert (merged.answer.status, merged.answer.rows, merged.id) == (Status.FINAL, (), "mine")
        assert (merged.answer.certified, merged.answer.model_digest) == (True, "f" * 64)
        assert merged.answer.confidence == 0.4  # the edge model's, as it was

    @pytest.mark.parametrize(("likeliest", "changed"), [((0, 3), False), ((0, 4), True), ((5, 3), True)])
    def test_changed_is_set_if_a_corrected_row_has_another_class(
        self, likeliest: tuple[int, int], changed: bool
    ) -> None:
        """Row 1 was kept: what the full model would have said of it plays no part."""
        asked = escalations.request(3)
        first = replace(
            escalations.response(asked, Status.PROVISIONAL), outputs=(Tensor("probabilities", one_hot(0, 1, 3)),)
        )
        correction = escalations.response(asked.take([0, 2]))
        merged = merge(first, (0, 2), replace(correction, outputs=(Tensor("probabilities", one_hot(*likeliest)),)))
        assert merged.answer is not None and first.answer is not None
        assert (first.answer.changed, merged.answer.changed) == (None, changed)
