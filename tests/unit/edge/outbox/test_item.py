"""Stored promises and answers: a seal binds each to its id, its caller and its model."""

from dataclasses import replace
from typing import Any

import pytest
from support.escalations import request, response

from firstline_core.errors import IntegrityError
from firstline_core.storage.seals import Seal
from firstline_core.types import Status
from firstline_edge.outbox.item import (
    ANSWER,
    PROVISIONAL,
    OutboxItem,
    open_answer,
    pack,
    pack_response,
    seal_answer,
    unpack,
)

SEALS = pytest.mark.parametrize("seal", [Seal(), Seal([b"k" * 32])], ids=["plain", "encrypted"])
REQUEST = request(2)
PROMISE = OutboxItem(REQUEST, (0, 2), response(REQUEST, Status.PROVISIONAL, rows=3), 1_800_000_000.0)


@SEALS
@pytest.mark.parametrize(
    "change",
    [{"request_id": "other"}, {"principal": "other"}, {"model": "other"}, {"version": "9"}, {"rows": "[0,1]"}],
)
def test_a_stored_promise_belongs_to_its_columns(seal: Seal, change: dict[str, Any]) -> None:
    stored = pack(PROMISE, 1_800_000_000.0, seal)
    found = unpack(stored, seal)
    assert (found.request_id, found.request.principal, found.model, found.rows) == (
        REQUEST.request_id,
        REQUEST.principal,
        PROMISE.model,
        (0, 2),
    )
    with pytest.raises(IntegrityError):
        unpack(replace(stored, **change), seal)


@SEALS
def test_a_stored_answer_belongs_to_its_promise(seal: Seal) -> None:
    stored = pack(PROMISE, 1_800_000_000.0, seal)
    sealed = seal_answer(pack_response(PROMISE.provisional), "id", "anna", seal)
    assert open_answer(sealed, ANSWER, "id", "anna", seal).answer == PROMISE.provisional.answer
    for kind, request_id, principal in (
        (ANSWER, "other", "anna"),
        (ANSWER, "id", "ben"),
        (PROVISIONAL, "id", "anna"),
    ):
        with pytest.raises(IntegrityError):
            open_answer(sealed, kind, request_id, principal, seal)
    with pytest.raises(IntegrityError):
        open_answer(stored.provisional, ANSWER, stored.request_id, stored.principal, seal)


def test_rows_without_a_position_are_no_promise() -> None:
    stored = pack(replace(PROMISE, rows=(0,)), 1_800_000_000.0, Seal())
    with pytest.raises(IntegrityError, match="1 positions for 2 rows"):
        unpack(stored, Seal())
