"""The routes with which persons sign in and out: a form for passwords, and OpenID Connect by Authlib.

Each attempt is an entry of the gateway's audit log. Requests that only imitate an identity provider's answer are not.
"""

from __future__ import annotations

import asyncio
import html
import math
import secrets
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from firstline.console.access import SIGN_IN_PATH as PATH
from firstline.console.accounts import Accounts, Oidc
from firstline.console.attempts import Attempts
from firstline.console.sessions import COOKIE, SESSION_S, Sessions
from firstline_core.errors import ConfigError, FirstlineError, missing_package
from firstline_core.fleet.persons import Person, SignIn
from firstline_core.storage.secrets import read_secret

if TYPE_CHECKING:
    from authlib.integrations.starlette_client import OAuth

_BODY_BYTES, _BODY_S = 4096, 20.0
_PROVIDER_S = 20.0  # for all that one step of a sign-in asks of the identity provider
# Those of public keys: a provider may also list "none", and then a token without a signature would be accepted.
_SIGNATURES = frozenset(
    ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519", "Ed448")
)
_DEFAULT_SIGNATURE = "RS256"
_MOST_HASHES = 2  # at once; each takes 19 MiB of memory
_PAGE = Path(__file__).with_name("sign_in.html").read_text()
Note = Callable[[SignIn], None]
"""Adds an attempt to the audit log; blocks."""


class SignInRoutes:
    """The application of these routes.

    Args:
        accounts: the persons with access.
        sessions: gets a session for each person.
        note: adds an attempt to the audit log.
        secure: whether browsers reach the console over TLS only.

    Raises:
        ConfigError: Authlib is not installed, or the client secret cannot be read.
    """

    def __init__(self, accounts: Accounts, sessions: Sessions, note: Note, *, secure: bool) -> None:
        self._accounts = accounts
        self._sessions = sessions
        self._note = note
        self._secure = secure
        self._attempts = Attempts()
        self._visits = Attempts()  # to the identity provider
        self._hashes = asyncio.Semaphore(_MOST_HASHES)
        self._oauth = _oauth(accounts.oidc) if accounts.oidc is not None else None
        self.app = Starlette(
            routes=[
                Route(PATH, self._form),
                Route(PATH, self._password, methods=["POST"]),
                Route(f"{PATH}/out", self._out, methods=["POST"]),
                Route(f"{PATH}/oidc", self._to_provider),
                Route(f"{PATH}/oidc/callback", self._from_provider),
            ],
            # It holds the state of one sign-in at the provider, until the browser comes back.
            middleware=[
                Middleware(
                    SessionMiddleware,
                    secret_key=secrets.token_hex(),
                    session_cookie=f"{COOKIE}-oidc",
                    max_age=600,
                    path=PATH,
                    https_only=secure,
                )
            ],
        )

    async def _form(self, request: Request) -> Response:
        return self._page(request)

    def _page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        theme = request.cookies.get("firstline-theme", "")
        content = _PAGE.replace("{problem}", html.escape(problem))
        content = content.replace("{theme}", theme if theme in ("light", "dark") else "")
        content = content.replace("{form}", "" if self._accounts.by_password else "hidden")
        content = content.replace("{oidc}", "" if self._oauth is not None else "hidden")
        return HTMLResponse(content, status)

    async def _password(self, request: Request) -> Response:
        address = _address(request)
        if wait_s := self._attempts.begin(address):
            return self._too_many(request, wait_s)
        fields = await _fields(request)
        name, password = fields.get("name", "")[:64], fields.get("password", "")
        async with self._hashes:
            person = await asyncio.to_thread(self._accounts.with_password, name, password)
        if person is None:
            await self._noted(SignIn(name, "password", address, "The name or the password is wrong."))
            return self._page(request, "The name or the password is wrong.", HTTPStatus.UNAUTHORIZED)
        return await self._entered(person, "password", address)

    def _too_many(self, request: Request, wait_s: float) -> Response:
        sentence = f"Too many attempts to sign in; try again in {math.ceil(wait_s)} s."
        refused = self._page(request, sentence, HTTPStatus.TOO_MANY_REQUESTS)
        refused.headers["Retry-After"] = str(math.ceil(wait_s))
        return refused

    async def _to_provider(self, request: Request) -> Response:
        if self._oauth is None or self._accounts.oidc is None:
            return RedirectResponse(PATH, HTTPStatus.SEE_OTHER)
        if wait_s := self._visits.begin(_address(request)):
            return self._too_many(request, wait_s)
        callback = f"{self._accounts.oidc.url.rstrip('/')}{PATH}/oidc/callback"
        try:
            async with asyncio.timeout(_PROVIDER_S):
                answer: Response = await self._oauth.provider.authorize_redirect(request, callback)
        except Exception as error:  # noqa: BLE001 (whatever the provider answers)
            sentence = f"The identity provider cannot be used: {_reason(error)}."
            return self._page(request, sentence, HTTPStatus.BAD_GATEWAY)
        return answer

    async def _from_provider(self, request: Request) -> Response:
        address = _address(request)
        if self._oauth is None or self._accounts.oidc is None:
            return RedirectResponse(PATH, HTTPStatus.SEE_OTHER)
        if wait_s := self._attempts.begin(address):
            return self._too_many(request, wait_s)
        provider, state = self._oauth.provider, request.query_params.get("state", "")
        if not await provider.framework.get_state_data(request.session, state):
            # Anybody can send such a request, so the audit log has no entry for it.
            sentence = "This sign-in was not begun in this browser, or took too long; begin again."
            return self._page(request, sentence, HTTPStatus.UNAUTHORIZED)
        from authlib.oidc.core import UserInfo

        try:
            async with asyncio.timeout(_PROVIDER_S):
                await _prepare(provider)
                options = _expected_claims(self._accounts.oidc)
                token = await provider.authorize_access_token(request, claims_options=options)
            claims = token.get("userinfo")
            # Authlib leaves what the provider sent if there was no ID token, or if it asked for none.
            if not isinstance(claims, UserInfo):
                raise LookupError("it sent no ID token that can be verified; check that it speaks OpenID Connect")
        except Exception as error:  # noqa: BLE001 (whatever the provider answers)
            sentence = f"The identity provider did not let you in: {_reason(error)}."[:200]
            await self._noted(SignIn("", "oidc", address, sentence))
            return self._page(request, sentence, HTTPStatus.UNAUTHORIZED)
        person = self._accounts.with_claims(claims)
        if person is None:
            name = str(claims.get("email") or claims.get("sub") or "")[:64]
            sentence = "You have no role here; ask the fleet's manager to give you one."
            await self._noted(SignIn(name, "oidc", address, "no role"))
            return self._page(request, sentence, HTTPStatus.FORBIDDEN)
        self._visits.succeeded(address)
        return await self._entered(person, "oidc", address)

    async def _entered(self, person: Person, method: str, address: str) -> Response:
        self._attempts.succeeded(address)
        await self._noted(SignIn(person.name, method, address))
        reply = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        token = self._sessions.begin(person)
        # Lax, so that links to the console work; other sites' POST requests do not carry it.
        reply.set_cookie(COOKIE, token, int(SESSION_S), httponly=True, secure=self._secure, samesite="lax")
        return reply

    async def _out(self, request: Request) -> Response:
        self._sessions.end(request.cookies.get(COOKIE, ""))
        reply = RedirectResponse(PATH, HTTPStatus.SEE_OTHER)
        reply.delete_cookie(COOKIE)
        return reply

    async def _noted(self, attempt: SignIn) -> None:
        try:
            await asyncio.to_thread(self._note, attempt)
        except FirstlineError:
            return  # without the gateway a person can still see that it is away


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


async def _fields(request: Request) -> dict[str, str]:
    """Returns the fields of a form; none of one that is too large or too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _BODY_BYTES:
                    return {}
    except TimeoutError:
        return {}
    found = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    return {name: values[0] for name, values in found.items()}


async def _prepare(provider: Any) -> None:
    """Has the provider's keys read again, and limits the signatures of its tokens to those of its keys."""
    metadata = await provider.load_server_metadata()
    metadata.pop("jwks", None)  # the provider may have replaced or withdrawn a key since
    listed = metadata.get("id_token_signing_alg_values_supported") or ()
    signatures = [each for each in listed if each in _SIGNATURES] or [_DEFAULT_SIGNATURE]
    metadata["id_token_signing_alg_values_supported"] = signatures


def _expected_claims(oidc: Oidc) -> dict[str, Any]:
    """Returns the claims that a token must have: the provider of the accounts issued it, for this console."""
    issuer = oidc.issuer.rstrip("/")
    return {
        "iss": {"essential": True, "values": [issuer, f"{issuer}/"]},
        "aud": {"essential": True, "value": oidc.client_id},
    }


def _reason(error: Exception) -> str:
    """Returns why the provider did not answer properly, without a period."""
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:  # of the HTTP library that Authlib uses
        return "it did not answer in time"
    return str(error).partition("\n")[0].rstrip(".: ") or type(error).__name__


def _oauth(oidc: Oidc) -> OAuth:
    try:
        from authlib.integrations.starlette_client import OAuth
    except ModuleNotFoundError as error:
        raise missing_package(error, "Sign-in by OpenID Connect", "oidc") from error
    secret = read_secret(oidc.client_secret_file, "oidc.client_secret_file")
    if not secret:
        raise ConfigError(f"{oidc.client_secret_file} has no client secret; write it into this file.")
    oauth = OAuth()
    oauth.register(
        "provider",
        client_id=oidc.client_id,
        client_secret=secret,
        server_metadata_url=f"{oidc.issuer.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={"scope": "openid email profile", "code_challenge_method": "S256"},
    )
    return oauth
