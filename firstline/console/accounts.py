"""The persons with access to the console, and their roles: a file of persons, or one password for all.

The file is TOML:

    [[person]]
    name = "anna@example.org"
    password = "$argon2id$..."     # as `firstline console --hash-password` prints it; absent for OIDC alone
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

import hmac
import re
import secrets
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from msgspec import Struct, field

from firstline_core.errors import ConfigError, RequestError
from firstline_core.fleet.persons import Person, PersonName, Role
from firstline_core.fleet.selector import parse_selector
from firstline_core.protocol.loopback import is_loopback
from firstline_core.protocol.tensors import shown
from firstline_core.storage import settings
from firstline_core.storage.files import naming, read_text
from firstline_core.storage.setting_places import FILE_LIMIT_BYTES, Sources

# The PHC format, with a salt of 16 bytes and a hash of 32: a hash of another form would fail at each sign-in.
_HASH = re.compile(
    r"\$argon2id\$v=19\$m=([1-9][0-9]{0,6}),t=([1-9][0-9]?),p=([1-9][0-9]?)"
    r"\$[A-Za-z0-9+/]{21}[AQgw]\$[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]"
)
_MEMORY_LIMIT_KIB, _ITERATIONS_LIMIT, _LANES_LIMIT = 1 << 20, 16, 16
SHARED_PERSON = Person("console", Role.APPROVER)
"""The one person of the shared password: with a name of their choice, one user could approve their own rollouts."""


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
    """The persons and the identity provider, or the shared password, "" without one."""

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
        if self.shared:
            return SHARED_PERSON if hmac.compare_digest(password.encode(), self.shared.encode()) else None
        account = next((one for one in self.person if one.name == name), None)
        # An unknown name takes as long as one of the file.
        stored = account.password if account is not None and account.password else _random_hash()
        if _is_password(password, stored) and account is not None:
            return Person(account.name, account.role, account.devices)
        return None

    def with_claims(self, claims: Mapping[str, Any]) -> Person | None:
        """Returns the person that an identity provider names; None if it has no role here."""
        if self.oidc is None:
            return None
        if self.oidc.name_claim == "email" and claims.get("email_verified") is not True:
            return None  # anybody may claim an address that was not verified
        try:
            name = msgspec.convert(claims.get(self.oidc.name_claim), PersonName)
        except msgspec.ValidationError:
            return None
        account = next((one for one in self.person if one.name == name), None)
        if account is not None:
            return Person(name, account.role, account.devices)
        try:
            claimed = msgspec.convert(claims.get(self.oidc.roles_claim), str | list[str])
        except msgspec.ValidationError:
            return None
        groups = {claimed} if isinstance(claimed, str) else set(claimed)
        found = next((one for one in self.oidc.role if one.group in groups), None)
        return Person(name, found.role, found.devices) if found is not None else None


def read_accounts(path: Path | None, shared: str) -> Accounts:
    """Reads the file of persons.

    Args:
        path: None for no file.
        shared: a shared password; "" for none.

    Raises:
        ConfigError: the file cannot be read, is not valid, or comes with a shared password.
    """
    if path is None:
        return Accounts(shared=shared)
    if shared:
        raise ConfigError(
            "--accounts excludes a shared password; remove it, or --password-file and FIRSTLINE_CONSOLE_PASSWORD."
        )
    with naming(path):
        found = settings.load(Accounts, Sources(path, read_text(path, FILE_LIMIT_BYTES)))
    _check_persons(path, found)
    if found.oidc is not None:
        _check_https(path, "issuer", found.oidc.issuer)
        _check_https(path, "url", found.oidc.url)
    return msgspec.structs.replace(found, shared="")


def _check_persons(path: Path, accounts: Accounts) -> None:
    names = Counter(account.name for account in accounts.person)
    if repeated := [name for name, count in names.items() if count > 1]:
        raise ConfigError(f"{path} has more than one person named {repeated[0]}; give each name once.")
    for account in accounts.person:
        if account.password and not _is_hash(account.password):
            raise ConfigError(
                f"{path}: the password of {account.name} is not a hash, is cut off, or costs too much; write what "
                "`firstline console --hash-password` prints."
            )
        _check_devices(path, account.name, account.devices)
    for group in accounts.oidc.role if accounts.oidc is not None else ():
        _check_devices(path, f"the group {shown(group.group)}", group.devices)


def _check_devices(path: Path, holder: str, devices: str) -> None:
    try:
        parse_selector(devices)
    except RequestError as error:
        raise ConfigError(f"{path}: the devices of {holder} are not a selector: {error.message}") from error


def _check_https(path: Path, key: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        encrypted = parts.scheme == "https" and bool(parts.hostname)
        local = parts.scheme == "http" and is_loopback(parts.hostname or "")
    except ValueError:
        encrypted = local = False
    if not (encrypted or local):
        raise ConfigError(f"{path}: oidc.{key} is {shown(url)}; write it as https://HOST (http:// on loopback only).")


def hash_password(password: str) -> str:
    """Returns the Argon2id hash of a password with a new salt (RFC 9106), in the PHC format."""
    # The cost that OWASP recommends; memory in KiB.
    hashing = Argon2id(salt=secrets.token_bytes(16), length=32, iterations=2, lanes=1, memory_cost=19 * 1024)
    return hashing.derive_phc_encoded(password.encode())


def _is_hash(stored: str) -> bool:
    """Returns whether this is a whole Argon2id hash whose costs are within the limits."""
    found = _HASH.fullmatch(stored)
    if found is None:
        return False
    memory_kib, iterations, lanes = map(int, found.groups())
    is_bounded = iterations <= _ITERATIONS_LIMIT and lanes <= _LANES_LIMIT
    return is_bounded and 8 * lanes <= memory_kib <= _MEMORY_LIMIT_KIB


def _is_password(password: str, stored: str) -> bool:
    try:
        Argon2id.verify_phc_encoded(password.encode(), stored)
    except (InvalidKey, ValueError):
        return False
    return True


@cache
def _random_hash() -> str:
    return hash_password(secrets.token_hex())
