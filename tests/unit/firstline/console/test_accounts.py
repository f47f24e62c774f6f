"""Sign-in by password and by the claims of an identity provider."""

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

OIDC = 'issuer = "https://id"\nclient_id = "console"\nclient_secret_file = "/secret"\nurl = "https://console"'

HASH = "$argon2id$v=19$m=19456,t=2,p=1$MTExMTExMTExMTExMTExMQ$+wT4Ba0kkAhoEXYR3hLKOg4g8pKd0chBsEWFEP8xf94"


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


def test_a_shared_password_is_one_person_under_any_name(tmp_path: Path) -> None:
    shared = read_accounts(None, "correct horse battery")
    for name in ("anna", "ben", "two words", ""):
        assert shared.with_password(name, "correct horse battery") == Person("console", Role.APPROVER)
    assert shared.with_password("anna", "wrong") is None
    assert not read_accounts(None, "").required
    with pytest.raises(ConfigError, match="excludes a shared password"):
        read_accounts(tmp_path / "accounts.toml", "correct horse battery")


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"email": "ben@example.org", "groups": ["fleet"]}, Person("ben@example.org", Role.OPERATOR, "site=kiel")),
        ({"email": "eve@example.org", "groups": ["other", "fleet"]}, Person("eve@example.org", Role.VIEWER)),
        ({"email": "eve@example.org", "groups": "fleet"}, Person("eve@example.org", Role.VIEWER)),
        ({"email": "eve@example.org"}, None),
        ({"email": "anna@example.org"}, Person("anna@example.org", Role.APPROVER)),
        *(
            ({"email": "anna@example.org", "email_verified": verified}, None)
            for verified in (False, "false", "true", 1, None)
        ),
        ({"email": "ben@example.org", "groups": None}, Person("ben@example.org", Role.OPERATOR, "site=kiel")),
        *(
            ({"email": "eve@example.org", "groups": groups}, None)
            for groups in (None, 7, {"fleet": 1}, [{"name": "fleet"}], ["fleet", 7], [["fleet"]])
        ),
        ({"sub": "7", "groups": ["fleet"]}, None),
        ({"email": "a b", "groups": ["fleet"]}, None),
        ({"email": 7, "groups": ["fleet"]}, None),
    ],
)
def test_claims_name_a_person_and_role(accounts: Accounts, claims: dict[str, object], expected: Person | None) -> None:
    assert accounts.with_claims({"email_verified": True} | claims) == expected


def test_an_address_without_verification_names_nobody(accounts: Accounts) -> None:
    assert accounts.with_claims({"email": "anna@example.org"}) is None


@pytest.mark.parametrize("key", ["issuer", "url"])
@pytest.mark.parametrize(
    "url", ["http://id.example.org", "id.example.org", "", "https://", "http://[", "ftp://127.0.0.1"]
)
def test_an_unencrypted_provider_is_refused(key: str, url: str, tmp_path: Path) -> None:
    oidc = {"issuer": "http://127.0.0.1:9", "client_id": "c", "client_secret_file": "s", "url": "http://localhost:8090"}
    path = tmp_path / "accounts.toml"
    path.write_text("[oidc]\n" + "\n".join(f'{name} = "{value}"' for name, value in oidc.items()))
    assert read_accounts(path, "").oidc is not None
    path.write_text("[oidc]\n" + "\n".join(f'{name} = "{value}"' for name, value in (oidc | {key: url}).items()))
    with pytest.raises(ConfigError, match=rf"oidc\.{key} .* https://HOST"):
        read_accounts(path, "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("argon2id", "argon2i"),
        ("v=19", "v=16"),
        ("v=19$", ""),
        ("$m=19456,t=2,p=1", ""),
        ("m=19456", "m=7"),
        ("m=19456", "m=4194304"),
        ("t=2", "t=0"),
        ("t=2", "t=99"),
        ("p=1", "p=17"),
        (HASH[-43:], ""),
        (HASH[-1], ""),
        (HASH[-43:-22], "not base64!" + HASH[-32:-22]),
        (HASH[-66:-44], HASH[-66:-48]),
        (HASH, "scrypt" + HASH[9:]),
    ],
)
def test_hash_that_no_password_fits_or_that_costs_too_much_is_refused(old: str, new: str, tmp_path: Path) -> None:
    path, text = tmp_path / "accounts.toml", f'[[person]]\nname = "a"\nrole = "viewer"\npassword = "{HASH}"'
    path.write_text(text)
    assert read_accounts(path, "").by_password
    before, found, after = text.rpartition(old)
    assert found
    path.write_text(before + new + after)
    with pytest.raises(ConfigError, match="the password of a is not a hash"):
        read_accounts(path, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[person]]\nname = "a"\nrole = "king"', "king"),
        ('[[person]]\nname = "a b"\nrole = "viewer"', "name"),
        ('[[person]]\nname = "a"\nrole = "viewer"\npassword = "plain"', "is not a hash"),
        (2 * '[[person]]\nname = "a"\nrole = "viewer"\n', "more than one person named a"),
        ('[[person]]\nname = "a"\nrole = "viewer"\ndevices = "site=="', "the devices of a are not a selector"),
        (f'[oidc]\n{OIDC}\n[[oidc.role]]\ngroup = "g"\nrole = "viewer"\ndevices = ","', "devices of the group"),
        ('[[people]]\nname = "a"', "people"),
    ],
)
def test_an_invalid_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "accounts.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_accounts(path, "")
    with pytest.raises(ConfigError, match="does not exist"):
        read_accounts(tmp_path / "none.toml", "")
