"""The console is open only to the configured users."""

from dataclasses import replace
from pathlib import Path

import pytest

from firstline.console.accounts import Accounts, Oidc
from firstline.console.settings import Settings
from firstline.console.settings_page import console_facts
from firstline_core.errors import ConfigError

LOCAL = Settings("http://127.0.0.1:8080", "key")
SHARED = Accounts(shared="correct horse battery")
PEM = Path("console.pem")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_a_loopback_address_needs_no_password(host: str) -> None:
    assert replace(LOCAL, host=host).local


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("[::1]", "[::1]")])
def test_the_page_of_settings_shows_the_port(host: str, shown: str) -> None:
    facts = {name: cell.text for name, cell in console_facts(replace(LOCAL, host=host, port=8091))}
    assert facts["Listens on"] == f"http://{shown}:8091"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "console.example", "127.0.0.1.example", ""])
def test_other_addresses_need_a_password_and_tls_or_plain_http(host: str) -> None:
    with pytest.raises(ConfigError, match="--password-file"):
        replace(LOCAL, host=host)
    with pytest.raises(ConfigError, match="--plain-http"):
        replace(LOCAL, host=host, accounts=SHARED)
    assert not replace(LOCAL, host=host, accounts=SHARED, plain_http=True).local
    assert replace(LOCAL, host=host, accounts=SHARED, tls_certificate=PEM, tls_key=PEM).scheme == "https"


def test_an_unusable_password_and_incomplete_tls_are_refused() -> None:
    with pytest.raises(ConfigError, match="has 6 characters"):
        replace(LOCAL, accounts=Accounts(shared="secret"))
    with pytest.raises(ConfigError, match="is not UTF-8 text; choose another"):  # the password is not in the message
        replace(LOCAL, accounts=Accounts(shared="correct horse \udcff"))
    with pytest.raises(ConfigError, match="both files"):
        replace(LOCAL, tls_certificate=PEM)


@pytest.mark.parametrize(
    ("url", "secure"), [("https://console", True), ("HTTPS://console", True), ("http://localhost:8090", False)]
)
def test_cookies_are_secure_if_browsers_use_https(url: str, secure: bool) -> None:
    behind = replace(LOCAL, accounts=Accounts(oidc=Oidc("https://id", "console", "/secret", url)))
    assert behind.secure is secure
    assert replace(behind, tls_certificate=PEM, tls_key=PEM).secure


def test_secrets_are_not_in_the_representation() -> None:
    assert "hidden" not in repr(Settings("http://127.0.0.1", "hidden-key", accounts=Accounts(shared="hidden-password")))
