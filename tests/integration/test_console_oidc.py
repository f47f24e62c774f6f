"""Sign-in to the console by OpenID Connect, at `oidc-provider` from npm, and at a provider that lies."""

import shutil
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from joserfc.jwk import ECKey, OKPKey
from support.lying_provider import LyingProvider, lying_provider
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


@pytest.fixture
def liar() -> Iterator[LyingProvider]:
    with lying_provider() as found:
        yield found


@pytest_asyncio.fixture
async def visitor(liar: LyingProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Browser]:
    found = Browser(liar.url, tmp_path, monkeypatch)
    async with found.console, found.provider:
        yield found


async def test_a_key_that_the_provider_has_replaced_counts_no_more(liar: LyingProvider, visitor: Browser) -> None:
    for kid in ("first", "first", "", "", "other"):  # also under the same name, or without one
        replaced, liar.key = liar.key, liar.new_key(kid)
        liar.header = {"alg": "RS256"} | ({"kid": kid} if kid else {})
        entered = await visitor.console.get(await visitor.sign_in("anna"))
        assert entered.status_code == 303, entered.text
        visitor.console.cookies.delete(COOKIE)
    new, liar.key = liar.key, replaced
    address = await visitor.sign_in("anna")
    token, liar.key = liar.token(), new
    liar.token = lambda: token  # type: ignore[method-assign]
    assert (await visitor.console.get(address)).status_code == 401


@pytest.mark.parametrize(
    ("metadata", "claims"),
    [
        ({}, {"aud": "other", "azp": "console"}),
        ({}, {"aud": []}),
        ({}, {"aud": ["other"]}),
        ({}, {"iss": "http://other"}),
        ({"issuer": None}, {"iss": "http://other"}),
        ({"issuer": "http://other"}, {"iss": "http://other"}),
        ({}, {"exp": 1_000_000_000}),
        ({}, {"nbf": 10_000_000_000}),
        ({}, {"iat": 10_000_000_000}),
        ({}, {"nonce": "another"}),
        ({}, {"nonce": None}),
    ],
)
async def test_a_token_for_others_is_refused(
    liar: LyingProvider, visitor: Browser, metadata: dict[str, Any], claims: dict[str, Any]
) -> None:
    liar.metadata, liar.claims = metadata, claims
    refused = await visitor.console.get(await visitor.sign_in("anna"))
    assert refused.status_code == 401 and COOKIE not in visitor.console.cookies
    assert [one.person for one in visitor.noted] == [""] and "did not let you in" in visitor.noted[0].refused


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
@pytest.mark.parametrize("signature", ["PS512", "ES256", "EdDSA", "Ed25519"])
async def test_signatures_of_public_keys_are_accepted(liar: LyingProvider, visitor: Browser, signature: str) -> None:
    liar.metadata = {"id_token_signing_alg_values_supported": [signature]}
    liar.header = {"alg": signature}
    if signature == "ES256":
        liar.key = ECKey.generate_key("P-256")
    elif signature.startswith("Ed"):
        liar.key = OKPKey.generate_key("Ed25519")
    assert (await visitor.console.get(await visitor.sign_in("anna"))).status_code == 303, visitor.noted


async def test_an_issuer_may_end_with_a_slash(liar: LyingProvider, visitor: Browser) -> None:
    liar.claims = {"iss": f"{liar.url}/"}
    assert (await visitor.console.get(await visitor.sign_in("anna"))).status_code == 303


@pytest.mark.filterwarnings("default:JWS algorithm")  # as in production, where it is not an error
async def test_an_unsigned_token_is_refused_although_the_provider_lists_it(
    liar: LyingProvider, visitor: Browser
) -> None:
    liar.metadata = {"id_token_signing_alg_values_supported": ["none", "HS256", "RS256"]}
    assert (await visitor.console.get(await visitor.sign_in("anna"))).status_code == 303
    visitor.console.cookies.delete(COOKIE)
    liar.header = {"alg": "none"}
    refused = await visitor.console.get(await visitor.sign_in("anna"))
    assert refused.status_code == 401 and COOKIE not in visitor.console.cookies


async def test_claims_outside_a_token_are_not_believed(liar: LyingProvider, visitor: Browser) -> None:
    eve = {"email": "eve@example.org", "email_verified": True, "groups": ["fleet"]}
    liar.answer = {"id_token": None, "userinfo": eve}
    refused = await visitor.console.get(await visitor.sign_in("eve"))
    assert refused.status_code == 401 and COOKIE not in visitor.console.cookies
    assert "it sent no ID token" in visitor.noted[0].refused
    liar.answer = {"userinfo": eve}
    assert (await visitor.console.get(await visitor.sign_in("eve"))).status_code == 303
    assert visitor.noted[1].person == "anna@example.org"


async def test_a_token_that_was_not_asked_for_is_not_believed(liar: LyingProvider, visitor: Browser) -> None:
    liar.metadata = {"scope": "email"}  # which Authlib requests then; without `openid` it verifies no token
    eve = {"email": "eve@example.org", "email_verified": True, "groups": ["fleet"]}
    liar.answer = {"id_token": "forged", "userinfo": eve}
    refused = await visitor.console.get(await visitor.sign_in("eve"))
    assert refused.status_code == 401 and COOKIE not in visitor.console.cookies


async def test_a_provider_that_is_silent_is_named(
    liar: LyingProvider, visitor: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firstline.console.sign_in._PROVIDER_S", 0.2)
    let_on = threading.Event()
    liar.before = lambda: let_on.wait(30)
    begun_s = time.monotonic()
    refused = await visitor.console.get(f"{PATH}/oidc")
    let_on.set()
    assert time.monotonic() - begun_s < 4  # the HTTP library alone waits for 5 s, and for ever if bytes trickle in
    assert refused.status_code == 502 and "cannot be used: it did not answer in time." in refused.text


async def test_a_provider_that_sends_no_token_is_named(
    liar: LyingProvider, visitor: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, let_on = await visitor.sign_in("anna"), threading.Event()
    monkeypatch.setattr("firstline.console.sign_in._PROVIDER_S", 0.2)
    liar.token = lambda: {"waited": let_on.wait(30)}  # type: ignore[method-assign]
    begun_s = time.monotonic()
    refused = await visitor.console.get(address)
    let_on.set()
    assert time.monotonic() - begun_s < 4
    assert refused.status_code == 401 and "let you in: it did not answer in time." in visitor.noted[0].refused
