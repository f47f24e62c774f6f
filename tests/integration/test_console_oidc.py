"""Sign-in to the console by OpenID Connect, at `oidc-provider` from npm."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from support.needs import missing

from firstline.console.accounts import Accounts, GroupRole, Oidc
from firstline.console.sessions import COOKIE, Sessions
from firstline.console.sign_in import PATH, SignInRoutes
from firstline_core.fleet.persons import Person, Role, SignIn

CONSOLE = "http://console.test"
MODULES = Path(__file__).parents[2] / ".venv-browser" / "node_modules"
SCRIPT = Path(__file__).parents[1] / "support" / "identity_provider.mjs"


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    node = shutil.which("node")
    if node is None or not (MODULES / "oidc-provider").exists():
        missing("oidc-provider is not installed: `make node .venv-browser/stamp`")
    command = [node, SCRIPT, MODULES, f"{CONSOLE}{PATH}/oidc/callback"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield process.stdout.readline().strip()
        process.kill()


class Browser:
    """A browser that visits the console, in this process, and the provider."""

    def __init__(self, issuer: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        secret = folder / "secret"
        secret.write_text("a secret of the console\n")
        secret.chmod(0o600)
        oidc = Oidc(issuer, "console", str(secret), CONSOLE, role=(GroupRole("fleet", Role.APPROVER, "site=kiel"),))
        self.sessions, self.noted = Sessions(), list[SignIn]()
        routes = SignInRoutes(Accounts(oidc=oidc), self.sessions, self.noted.append, secure=False)
        self.console = httpx.AsyncClient(transport=httpx.ASGITransport(routes.app), base_url=CONSOLE)
        self.provider = httpx.AsyncClient(trust_env=False)

    async def sign_in(self, who: str) -> str:
        """Follows the redirects to the provider, and returns the address to which it sends the browser back."""
        self.provider.cookies.set("who", who)
        there = await self.console.get(f"{PATH}/oidc")
        while not (address := there.headers["location"]).startswith(CONSOLE):
            there = await self.provider.get(httpx.URL(str(there.url)).join(address))
            assert there.is_redirect, there.text
        return address


@pytest_asyncio.fixture
async def browser(issuer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Browser]:
    found = Browser(issuer, tmp_path, monkeypatch)
    async with found.console, found.provider:
        yield found


async def test_a_member_of_a_group_gets_its_role(browser: Browser) -> None:
    assert "Sign in with your organisation" in (await browser.console.get(PATH)).text
    entered = await browser.console.get(await browser.sign_in("anna"))
    assert entered.status_code == 303, entered.text
    anna = Person("anna@example.org", Role.APPROVER, "site=kiel")
    assert browser.sessions.person(browser.console.cookies[COOKIE]) == anna
    assert [(one.person, one.method, one.refused) for one in browser.noted] == [("anna@example.org", "oidc", "")]


async def test_a_person_without_a_role_is_refused(browser: Browser) -> None:
    refused = await browser.console.get(await browser.sign_in("eve"))
    assert refused.status_code == 403 and "no role here" in refused.text
    assert [(one.person, one.refused) for one in browser.noted] == [("eve@example.org", "no role")]


async def test_a_forged_answer_of_the_provider_is_refused(browser: Browser) -> None:
    address = await browser.sign_in("anna")
    for forged in (address.replace("state=", "state=x"), f"{PATH}/oidc/callback?code=guess&state=guess"):
        refused = await browser.console.get(forged)
        assert refused.status_code == 401 and COOKIE not in browser.console.cookies
    assert browser.noted == []


async def test_an_unreachable_provider_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    away = Browser("http://127.0.0.1:9", tmp_path, monkeypatch)
    async with away.console, away.provider:
        refused = await away.console.get(f"{PATH}/oidc")
    assert refused.status_code == 502 and "The identity provider cannot be used" in refused.text
