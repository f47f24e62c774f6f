from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from firstline_core.errors import ForbiddenError, UnauthorizedError
from firstline_gateway.api.auth import Caller, authenticate, authenticate_operator
from firstline_gateway.tokens import TokenStore, create_token


def test_a_token_becomes_a_principal_and_only_a_device_keeps_its_request_ids(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    device = create_token(file, "press-7", "device", datetime.now(UTC))
    application = create_token(file, "shop", "application", datetime.now(UTC))
    store = TokenStore(file)
    press, shop = Caller("device:press-7", True, operator=False), Caller("application:shop", False, operator=False)
    assert authenticate(store, f"Bearer {device}") == press
    assert authenticate(store, f"bearer  {application} ") == shop


def test_an_operator_is_who_has_an_operators_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    operator = create_token(file, "anna", "operator", datetime.now(UTC))
    others = [create_token(file, kind, kind, datetime.now(UTC)) for kind in ("device", "application")]
    store = TokenStore(file)
    assert authenticate_operator(store, f"Bearer {operator}") == Caller("operator:anna", False, operator=True)
    for token in others:
        with pytest.raises(ForbiddenError, match="use an operator's token"):
            authenticate_operator(store, f"Bearer {token}")
    with pytest.raises(UnauthorizedError):
        authenticate_operator(store, None)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "flt_x"])
def test_without_a_token_the_sentence_names_the_header_to_send(tmp_path: Path, header: str | None) -> None:
    with pytest.raises(UnauthorizedError, match="send the header `Authorization: Bearer TOKEN`"):
        authenticate(TokenStore(tmp_path / "none"), header)


def test_a_wrong_token_is_told_from_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(UnauthorizedError, match="is not valid here"):
        authenticate(TokenStore(tmp_path / "none"), "Bearer flt_x")


def test_where_authentication_is_off_anybody_is_served() -> None:
    assert authenticate(None, None) == Caller("", trust_request_id=True, operator=True)
