"""Who may call: bearer tokens where a token file is set, this machine's own users where not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from firstline_core.errors import RequestError
from firstline_edge.agent import LOCAL_PRINCIPAL
from firstline_edge.secrets_file import Tokens, read_tokens
from firstline_edge.settings import LOOPBACK_NAMES, ApiSection


class Access(Protocol):
    """Tells the principal of a request by its headers."""

    def principal(self, headers: Mapping[str, str]) -> str:
        """The caller's name.

        Raises:
            RequestError: nobody may call like that.
        """
        ...


class TokenAccess:
    """The bearer token's name is the principal."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def principal(self, headers: Mapping[str, str]) -> str:
        return self._tokens.principal(headers.get("authorization", ""))


class LoopbackAccess:
    """Everybody on this machine, as one principal.

    A web page that the machine's user looks at is not meant: it may have its own name point at 127.0.0.1 (DNS
    rebinding), so only the loopback's names are answered to.
    """

    def principal(self, headers: Mapping[str, str]) -> str:
        host = headers.get("host", "")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name.lower() not in LOOPBACK_NAMES:
            raise RequestError(f"This agent answers to {', '.join(LOOPBACK_NAMES)}, not to '{name[:100]}'.")
        return LOCAL_PRINCIPAL


def access_of(api: ApiSection) -> Access:
    """The access that the settings ask for.

    Raises:
        ConfigError: the token file cannot be read, or makes no sense.
    """
    return TokenAccess(read_tokens(api.token_file, "api.token_file")) if api.token_file else LoopbackAccess()
