"""Who may sign in, by password and by the claims of an identity provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstline.console.accounts import Accounts, hash_password, read_accounts
from firstline_core.errors import ConfigError
from firstline_core.fleet.persons import Person, Role

FILE = """
[[person]]
name = "anna@example.org"
role = "approver"
password = "{hash}"

[[person]]
name = "ben@example.org"
role = "operator"
devices = "site=kiel"

[oidc]
issuer = "https://id.example.org"
client_id = "console"
client_secret_file = "/secret"
url = "https://console.example.org"

[[oidc.role]]
group = "fleet"
role = "viewer"
"""


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Accounts:
    path = tmp_path_factory.mktemp("accounts") / "accounts.toml"
    path.write_text(FILE.format(hash=hash_password("correct horse battery")))
    return read_accounts(path, "")


def test_a_password_belongs_to_one_person(accounts: Accounts) -> None:
    anna = Person("anna@example.org", Role.APPROVER)
    assert accounts.required and accounts.by_password
    assert accounts.with_password("anna@example.org", "correct horse battery") == anna
    for name, password in (("anna@example.org", "wrong"), ("ben@example.org", "correct horse battery"), ("", "")):
        assert accounts.with_password(name, password) is None


def test_a_common_password_takes_any_valid_name() -> None:
    shared = read_accounts(None, "correct horse battery")
    assert shared.with_password("anna", "correct horse battery") == Person("anna", Role.APPROVER)
    assert shared.with_password("two words", "correct horse battery") is None
    assert shared.with_password("anna", "wrong") is None
    assert not read_accounts(None, "").required


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"email": "ben@example.org", "groups": ["fleet"]}, Person("ben@example.org", Role.OPERATOR, "site=kiel")),
        ({"email": "eve@example.org", "groups": ["other", "fleet"]}, Person("eve@example.org", Role.VIEWER)),
        ({"email": "eve@example.org", "groups": "fleet"}, Person("eve@example.org", Role.VIEWER)),
        ({"email": "eve@example.org"}, None),
        ({"email": "anna@example.org", "email_verified": False}, None),
        ({"sub": "7", "groups": ["fleet"]}, None),
        ({"email": "a b", "groups": ["fleet"]}, None),
        ({"email": 7, "groups": ["fleet"]}, None),
    ],
)
def test_claims_name_a_person_with_a_role(
    accounts: Accounts, claims: dict[str, object], expected: Person | None
) -> None:
    assert accounts.with_claims(claims) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[person", "is not valid"),
        ('[[person]]\nname = "a"\nrole = "king"', "king"),
        ('[[person]]\nname = "a b"\nrole = "viewer"', "name"),
        ('[[person]]\nname = "a"\nrole = "viewer"\npassword = "plain"', "is not a hash"),
        ('[[people]]\nname = "a"', "people"),
    ],
)
def test_an_invalid_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "accounts.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_accounts(path, "")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_accounts(tmp_path / "none.toml", "")
