"""Who may call: bearer tokens where a token file is set, this machine's own users where not."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Protocol

from firstline_core.errors import ForbiddenError, RequestError
from firstline_core.protocol.tensors import shown
from firstline_edge.api.data_plane import LOCAL_PRINCIPAL
from firstline_edge.api.tokens import Tokens, read_tokens
from firstline_edge.settings.check import LOOPBACK_NAMES
from firstline_edge.settings.settings import ApiSection


class Access(Protocol):
    """Tells the principal of a request by its headers."""

    def principal(self, headers: Mapping[str, str]) -> str:
        """The caller's name.

        Raises:
            RequestError: nobody may call like that.
        """
        ...

    def bearer(self, authorization: str) -> str:
        """The caller's name over a transport that no web page can use.

        Args:
            authorization: "Bearer TOKEN", or "".

        Raises:
            RequestError: as `principal`.
        """
        ...


class TokenAccess:
    """The bearer token's name is the principal."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def principal(self, headers: Mapping[str, str]) -> str:
        return self.bearer(headers.get("authorization", ""))

    def bearer(self, authorization: str) -> str:
        return self._tokens.principal(authorization)


class LoopbackAccess:
    """Everybody on this machine, as one principal.

    A web page from elsewhere that the machine's user looks at is not meant. It may have its own name point at
    127.0.0.1 (DNS rebinding), so only the loopback's names are answered to; and it may have the browser post to
    127.0.0.1 (CSRF), which then says in `Origin` whose page it was. With a token file neither matters: no page knows
    the token.
    """

    def principal(self, headers: Mapping[str, str]) -> str:
        host = _name(headers.get("host", ""))
        if host not in LOOPBACK_NAMES:
            raise RequestError(f"This agent answers to {', '.join(LOOPBACK_NAMES)}, not to {shown(host)}.")
        origin = headers.get("origin")
        if origin is not None and _name(origin.partition("://")[2]) not in LOOPBACK_NAMES:
            raise RequestError(
                f"This agent does not answer to web pages from elsewhere ({shown(origin)}); set api.token_file and "
                "have the page send a token."
            )
        return LOCAL_PRINCIPAL

    def bearer(self, authorization: str) -> str:
        return LOCAL_PRINCIPAL


def check_local(peer: tuple[str, int] | None) -> None:
    """Whether a caller is on this machine, as those must be who change what it holds.

    Args:
        peer: address and port; None where the connection has none: a Unix socket's.

    Raises:
        ForbiddenError: it is not.
    """
    if peer is not None and not is_loopback(peer[0]):
        raise ForbiddenError(f"Models are loaded and unloaded from the device itself, not from {peer[0]}.")


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return found.is_loopback or (found.version == 6 and bool(found.ipv4_mapped and found.ipv4_mapped.is_loopback))


def _name(authority: str) -> str:
    """The host of `HOST[:PORT]`, in lower case."""
    name = authority[1:].partition("]")[0] if authority.startswith("[") else authority.partition(":")[0]
    return name.lower()


def access_of(api: ApiSection) -> Access:
    """The access that the settings ask for.

    Raises:
        ConfigError: the token file cannot be read, or makes no sense.
    """
    return TokenAccess(read_tokens(api.token_file, "api.token_file")) if api.token_file else LoopbackAccess()
