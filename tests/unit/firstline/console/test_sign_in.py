"""Signing in and out, with the limit on wrong passwords."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from firstline.console.accounts import SHARED_PERSON, Account, Accounts, Oidc, hash_password
from firstline.console.attempts import PER_ADDRESS
from firstline.console.sessions import COOKIE, Sessions
from firstline.console.sign_in import PATH, SignInRoutes
from firstline_core.errors import LinkDownError
from firstline_core.fleet.persons import Role, SignIn

PASSWORD = "correct horse battery"
SHARED = Accounts(shared=PASSWORD)


class Site:
    """The routes, with one shared password by default."""

    def __init__(self, accounts: Accounts = SHARED) -> None:
        self.sessions = Sessions()
        self.noted: list[SignIn] = []
        self.routes = SignInRoutes(accounts, self.sessions, self.note, secure=True)

    def note(self, attempt: SignIn) -> None:
        self.noted.append(attempt)
        raise LinkDownError("The gateway is away.")  # which does not keep a person out

    def client(self, address: str = "192.0.2.1") -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.routes.app, client=(address, 1)), base_url="https://c"
        )


@pytest.fixture
def site() -> Iterator[Site]:
    yield Site()


async def test_a_person_signs_in_and_out(site: Site) -> None:
    async with site.client() as client:
        assert "Sign in" in (await client.get(PATH)).text
        entered = await client.post(PATH, data={"name": "anna", "password": PASSWORD})
        assert entered.status_code == 303 and entered.headers["location"] == "/"
        cookie = entered.headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "Secure", "SameSite=lax"))
        token = client.cookies[COOKIE]
        assert site.sessions.person(token) == SHARED_PERSON
        left = await client.post(f"{PATH}/out")
        assert left.status_code == 303 and site.sessions.person(token) is None
    assert site.noted == [SignIn(SHARED_PERSON.name, "password", "192.0.2.1")]


async def test_a_form_that_does_not_end_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstline.console.sign_in._BODY_S", 0.1)

    async def slowly() -> AsyncIterator[bytes]:
        yield b"name=anna&password="
        await asyncio.Event().wait()

    async with site.client() as client, asyncio.timeout(10):
        assert (await client.post(PATH, content=slowly())).status_code == 401


@pytest.mark.parametrize(
    "fields", [{"name": "anna", "password": "wrong"}, {"name": "anna"}, {}, {"name": "a", "password": "x" * 5000}]
)
async def test_a_wrong_password_is_refused_and_noted(site: Site, fields: dict[str, str]) -> None:
    async with site.client() as client:
        refused = await client.post(PATH, data=fields)
    assert refused.status_code == 401 and "The name or the password is wrong." in refused.text
    assert not client.cookies and site.noted[0].refused


async def test_text_from_the_browser_is_not_html(site: Site) -> None:
    async with site.client() as client:
        refused = await client.post(PATH, data={"name": "<script>", "password": "wrong"})
    assert "<script>" not in refused.text


async def test_too_many_attempts_are_refused_until_the_minute_is_over(site: Site) -> None:
    async with site.client() as guesser, site.client("192.0.2.2") as owner:
        for _ in range(PER_ADDRESS):
            assert (await guesser.post(PATH, data={"name": "a", "password": "wrong"})).status_code == 401
        refused = await guesser.post(PATH, data={"name": "a", "password": PASSWORD})
        assert refused.status_code == 429 and 0 < int(refused.headers["retry-after"]) <= 60
        assert (await owner.post(PATH, data={"name": "a", "password": PASSWORD})).status_code == 303
        assert (await guesser.get(f"{PATH}/oidc")).headers["location"] == PATH


async def test_right_passwords_do_not_count(site: Site) -> None:
    async with site.client() as client:
        for _ in range(PER_ADDRESS + 1):
            assert (await client.post(PATH, data={"name": "a", "password": PASSWORD})).status_code == 303


async def test_simultaneous_attempts_do_not_pass_the_limit() -> None:
    site = Site(Accounts((Account("anna", Role.VIEWER, hash_password(PASSWORD)),)))
    async with site.client() as client:
        tried = [client.post(PATH, data={"name": "anna", "password": "wrong"}) for _ in range(3 * PER_ADDRESS)]
        codes = [reply.status_code for reply in await asyncio.gather(*tried)]
    assert codes.count(401) == PER_ADDRESS == len(site.noted) and codes.count(429) == 2 * PER_ADDRESS


def site_with_provider(folder: Path) -> Site:
    """The routes, with an identity provider that is away."""
    pytest.importorskip("authlib")
    secret = folder / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    return Site(Accounts(oidc=Oidc("http://127.0.0.1:9", "console", str(secret), "https://c")))


async def test_visits_to_the_identity_provider_are_limited_by_address(tmp_path: Path) -> None:
    site = site_with_provider(tmp_path)
    async with site.client() as visitor, site.client("192.0.2.2") as other:
        for _ in range(PER_ADDRESS):
            assert (await visitor.get(f"{PATH}/oidc")).status_code == 502
        refused = await visitor.get(f"{PATH}/oidc")
        assert refused.status_code == 429 and 0 < int(refused.headers["retry-after"]) <= 60
        assert (await other.get(f"{PATH}/oidc")).status_code == 502


@pytest.mark.parametrize("query", ["", "?code=guess&state=guess", "?error=denied", "?error=denied&state="])
async def test_an_answer_without_a_known_state_counts_but_is_not_noted(query: str, tmp_path: Path) -> None:
    site = site_with_provider(tmp_path)
    async with site.client() as client:
        for _ in range(PER_ADDRESS):
            refused = await client.get(f"{PATH}/oidc/callback{query}")
            assert refused.status_code == 401 and "begin again" in refused.text
        assert (await client.get(f"{PATH}/oidc/callback{query}")).status_code == 429
    assert site.noted == []
