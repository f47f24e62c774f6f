"""Who calls: from the Authorization header to a principal."""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.errors import ForbiddenError, UnauthorizedError
from firstline_gateway.tokens import TokenStore


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller.

    Args:
        principal: the token's kind and name, e.g. "device:NAME"; "" where authentication is off.
        trust_request_id: whether its own request ids are kept. An application could otherwise guess at, or
            reuse, an id that belongs to somebody else's answer.
        operator: whether it may see and change what devices are told.
    """

    principal: str
    trust_request_id: bool
    operator: bool


_ANYBODY = Caller(principal="", trust_request_id=True, operator=True)


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
    return Caller(token.principal, trust_request_id=token.kind == "device", operator=token.kind == "operator")


def authenticate_operator(tokens: TokenStore | None, authorization: str | None) -> Caller:
    """Finds the caller, who must be an operator.

    Raises:
        UnauthorizedError: no token, or not a valid one.
        ForbiddenError: one of another kind.
    """
    caller = authenticate(tokens, authorization)
    if not caller.operator:
        raise ForbiddenError(
            f"{caller.principal} may not do this; use an operator's token (`firstline-gateway token create NAME --kind "
            "operator`)."
        )
    return caller
