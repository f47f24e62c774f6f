"""Signing in and out, with the limit on wrong passwords."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from firstline.console.accounts import Accounts
from firstline.console.attempts import PER_ADDRESS
from firstline.console.sessions import COOKIE, Sessions
from firstline.console.sign_in import PATH, SignInRoutes
from firstline_core.errors import LinkDownError
from firstline_core.fleet.persons import Person, Role, SignIn

PASSWORD = "correct horse battery"


class Site:
    """The routes with one common password."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        self.noted: list[SignIn] = []
        self.routes = SignInRoutes(Accounts(shared=PASSWORD), self.sessions, self.note, secure=True)

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
        assert site.sessions.person(token) == Person("anna", Role.APPROVER)
        left = await client.post(f"{PATH}/out")
        assert left.status_code == 303 and site.sessions.person(token) is None
    assert site.noted == [SignIn("anna", "password", "192.0.2.1")]


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
