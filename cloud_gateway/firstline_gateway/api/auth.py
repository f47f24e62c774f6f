"""Who calls: from the Authorization header to a principal."""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.errors import UnauthorizedError
from firstline_gateway.tokens import TokenStore


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller.

    Args:
        principal: "device:NAME" or "application:NAME"; "" where authentication is off.
        trust_request_id: whether its own request ids are kept. An application could otherwise guess at, or
            reuse, an id that belongs to somebody else's answer.
    """

    principal: str
    trust_request_id: bool


_ANYBODY = Caller(principal="", trust_request_id=True)


def authenticate(tokens: TokenStore | None, authorization: str | None) -> Caller:
    """Finds the caller.

    Args:
        tokens: the valid ones; None where authentication is off.
        authorization: the header's value, None where it is absent.

    Raises:
        UnauthorizedError: no token, or not a valid one.
    """
    if tokens is None:
        return _ANYBODY
    scheme, _, text = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        raise UnauthorizedError("This gateway needs a token; send the header `Authorization: Bearer TOKEN`.")
    token = tokens.find(text.strip())
    if token is None:
        raise UnauthorizedError(
            "The token in the Authorization header is not valid here; ask the gateway's operator for a new one."
        )
    return Caller(token.principal, trust_request_id=token.kind == "device")
