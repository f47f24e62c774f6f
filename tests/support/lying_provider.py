"""A provider of OpenID Connect that can break its promises: in its metadata, its keys and its tokens."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey


class LyingProvider:
    """Signs in Anna, who is a member of the group `fleet`, at once.

    Attributes:
        url: its address, and its name as an issuer.
        key: signs the tokens.
        metadata: members that replace those of its configuration; None removes one.
        claims: those that replace the claims of a token; None removes one.
        header: of a token.
        answer: members that replace those of the answer with the token; None removes one.
        before: called before its configuration is sent.
    """

    def __init__(self) -> None:
        self.url = ""
        self.key = _first_key()
        self.metadata: dict[str, Any] = {}
        self.claims: dict[str, Any] = {}
        self.header: dict[str, Any] = {"alg": "RS256", "kid": "first"}
        self.answer: dict[str, Any] = {}
        self.before: Callable[[], object] = lambda: None
        self._visits: list[Mapping[str, str]] = []

    @staticmethod
    def new_key(kid: str = "first") -> RSAKey:
        return RSAKey.generate_key(2048, {"kid": kid} if kid else {})

    def configuration(self) -> dict[str, Any]:
        self.before()
        places = {name: f"{self.url}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
        return _replaced({"issuer": self.url} | places, self.metadata)

    def keys(self) -> dict[str, Any]:
        return {"keys": [self.key.as_dict(private=False)]}

    def visit(self, query: Mapping[str, str]) -> str:
        """Returns where a browser is sent after it has signed in."""
        self._visits.append(query)
        return f"{query['redirect_uri']}?{urlencode({'code': len(self._visits), 'state': query['state']})}"

    def token(self) -> dict[str, Any]:
        now_s = int(time.time())
        person = {"sub": "1", "email": "anna@example.org", "email_verified": True, "groups": ["fleet"]}
        claims = {"iss": self.url, "aud": "console", "iat": now_s, "exp": now_s + 300}
        signed = _replaced(person | claims | {"nonce": self._visits[-1].get("nonce")}, self.claims)
        if self.header["alg"] == "none":
            token = ".".join((_base64(self.header), _base64(signed), ""))
        else:
            token = jwt.encode(self.header, signed, self.key, algorithms=[self.header["alg"]])
        return _replaced({"access_token": "x", "token_type": "Bearer", "id_token": token}, self.answer)


@cache
def _first_key() -> RSAKey:
    """The key of each provider until a test replaces it: a new one takes longer than a sign-in."""
    return LyingProvider.new_key()


def _base64(document: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


def _replaced(found: dict[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (found | by).items() if value is not None}


@contextmanager
def lying_provider() -> Iterator[LyingProvider]:
    provider = LyingProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/authorization_endpoint":
                self.send_response(302)
                self.send_header("Location", provider.visit(dict(parse_qsl(parts.query))))
                self.end_headers()
            else:
                self.answer(provider.keys() if parts.path == "/jwks_uri" else provider.configuration())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(provider.token())

        def answer(self, document: object) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(BrokenPipeError):  # the client no longer waits
                self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            yield provider
        finally:
            server.shutdown()
