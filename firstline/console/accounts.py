"""The persons with access to the console, and their roles: a file of persons, or one password for all.

The file is TOML:

    [[person]]
    name = "anna@example.org"
    password = "scrypt$..."        # as `firstline console --hash-password` prints it; absent for OIDC alone
    role = "approver"              # viewer, operator or approver
    devices = "site=kiel"          # selector of devices; absent for all

    [oidc]
    issuer = "https://id.example.org"
    client_id = "firstline-console"
    client_secret_file = "/etc/firstline/oidc-secret"
    url = "https://console.example.org"    # of this console, as browsers see it
    name_claim = "email"           # default
    roles_claim = "groups"         # default

    [[oidc.role]]                  # the first that matches decides; persons of the file need none
    group = "fleet-approvers"
    role = "approver"
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from firstline_core.errors import ConfigError
from firstline_core.fleet.persons import Person, PersonName, Role

_SCRYPT = {"n": 2**14, "r": 8, "p": 1, "maxmem": 2**26}
_SALT_BYTES = 16
SHARED_ROLE = Role.APPROVER
"""The role of everybody who knows the common password."""


class Account(Struct, frozen=True, forbid_unknown_fields=True):
    """A person of the file."""

    name: PersonName
    role: Role
    password: str = ""
    devices: str = ""


class GroupRole(Struct, frozen=True, forbid_unknown_fields=True):
    """The role of the members of a group, as the identity provider names it."""

    group: str
    role: Role
    devices: str = ""


class Oidc(Struct, frozen=True, forbid_unknown_fields=True):
    """An identity provider that speaks OpenID Connect."""

    issuer: str
    client_id: str
    client_secret_file: str
    url: str
    name_claim: str = "email"
    roles_claim: str = "groups"
    role: tuple[GroupRole, ...] = ()


class Accounts(Struct, frozen=True, forbid_unknown_fields=True):
    """The persons, and the identity provider; `shared` is the common password, "" without one."""

    person: tuple[Account, ...] = ()
    oidc: Oidc | None = None
    shared: str = field(default="", name="-")

    @property
    def required(self) -> bool:
        """Returns whether browsers must sign in."""
        return bool(self.person or self.oidc or self.shared)

    @property
    def by_password(self) -> bool:
        """Returns whether anybody can sign in by password."""
        return bool(self.shared) or any(one.password for one in self.person)

    def with_password(self, name: str, password: str) -> Person | None:
        """Returns the person with this name and password; None if they are wrong. Takes tens of milliseconds."""
        account = next((one for one in self.person if one.name == name), None)
        # An unknown name takes as long as a known one.
        known = account.password if account is not None and account.password else _nobody()
        if _is_password(password, known) and account is not None:
            return Person(account.name, account.role, account.devices)
        if self.shared and hmac.compare_digest(password.encode(), self.shared.encode()):
            try:
                return Person(msgspec.convert(name, PersonName), SHARED_ROLE)
            except msgspec.ValidationError:
                return None
        return None

    def with_claims(self, claims: Mapping[str, Any]) -> Person | None:
        """Returns the person that an identity provider names; None if it has no role here."""
        if self.oidc is None:
            return None
        if self.oidc.name_claim == "email" and claims.get("email_verified") is False:
            return None  # anybody may claim an address that was not verified
        try:
            name = msgspec.convert(claims.get(self.oidc.name_claim), PersonName)
        except msgspec.ValidationError:
            return None
        account = next((one for one in self.person if one.name == name), None)
        if account is not None:
            return Person(name, account.role, account.devices)
        groups = claims.get(self.oidc.roles_claim, ())
        groups = {groups} if isinstance(groups, str) else set(groups)
        found = next((one for one in self.oidc.role if one.group in groups), None)
        return Person(name, found.role, found.devices) if found is not None else None


def read_accounts(path: Path | None, shared: str) -> Accounts:
    """Reads the file of persons.

    Args:
        path: None for no file.
        shared: a common password; "" for none.

    Raises:
        ConfigError: the file cannot be read, or is not valid.
    """
    if path is None:
        return Accounts(shared=shared)
    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), Accounts)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} is not valid: {error}.") from error
    for account in found.person:
        if account.password and len(account.password.split("$")) != 3:
            raise ConfigError(
                f"{path}: the password of {account.name} is not a hash; write what `firstline console --hash-password` "
                "prints."
            )
    return msgspec.structs.replace(found, shared=shared)


def hash_password(password: str) -> str:
    """Returns the scrypt hash of a password with a new salt (RFC 7914)."""
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = hashlib.scrypt(password.encode(), salt=salt, **_SCRYPT)
    return "$".join(("scrypt", base64.b64encode(salt).decode(), base64.b64encode(digest).decode()))


def _is_password(password: str, known: str) -> bool:
    try:
        _, salt, digest = known.split("$")
        found = hashlib.scrypt(password.encode(), salt=base64.b64decode(salt), **_SCRYPT)
        return hmac.compare_digest(found, base64.b64decode(digest))
    except ValueError:
        return False


@cache
def _nobody() -> str:
    return hash_password(secrets.token_hex())
