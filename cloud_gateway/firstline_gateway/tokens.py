"""Bearer tokens: who may call, kept as hashes in a file that is read again whenever it changes.

A token is 32 random bytes, so a plain SHA-256 of it cannot be searched; it is printed once and never stored.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from firstline_core.errors import ConfigError
from firstline_core.names import Name
from firstline_core.telemetry.logs import logger

Kind = Literal["device", "application", "operator"]

# A fixed start keeps tokens from looking like a flag ("-...") and lets secret scanners know them.
PREFIX = "flt_"
_INDEX_CHARACTERS = 16

log = logger(__name__)


class Token(Struct, frozen=True, forbid_unknown_fields=True):
    """One caller's token.

    Attributes:
        name: unique in the file; of a device, the name in its MQTT topics too.
        kind: a device's own request ids are kept and its audits count, another's are not and do not; an operator may
            see and change what devices are told of their contracts.
        sha256: of the token's text, as hexadecimal digits.
        created: when, RFC 3339.
    """

    name: Name
    kind: Kind
    sha256: str
    created: datetime

    @property
    def principal(self) -> str:
        """Who this is, as requests and logs name it."""
        return f"{self.kind}:{self.name}"


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    tokens: tuple[Token, ...] = ()


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens in a file; none where there is no file.

    Raises:
        ConfigError: it cannot be read, or is not a token file.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).tokens
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"The token file {path} cannot be read: {error.strerror}.") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"The token file {path} is damaged ({error}); restore it, or create the tokens anew."
        ) from error


def create_token(path: Path, name: str, kind: Kind, created: datetime) -> str:
    """Adds a token and returns its text, which is nowhere else.

    Raises:
        ConfigError: the name is taken or malformed, or the file cannot be read or written.
    """
    text = PREFIX + secrets.token_urlsafe(32)
    with _locked(path):
        tokens = read_tokens(path)
        if any(token.name == name for token in tokens):
            raise ConfigError(f"A token named '{name}' exists; revoke it first, or choose another name.")
        record = {"name": name, "kind": kind, "sha256": _digest(text), "created": created}
        try:
            token = msgspec.convert(record, Token)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"{name!a} cannot name a token; use 1 to 64 letters, digits, '.', '_', '-', a letter or digit first."
            ) from error
        _write(path, (*tokens, token))
    return text


def revoke_token(path: Path, name: str) -> None:
    """Removes a token; a running gateway refuses it from the next request on.

    Raises:
        ConfigError: there is none of that name, or the file cannot be read or written.
    """
    with _locked(path):
        tokens = read_tokens(path)
        kept = tuple(token for token in tokens if token.name != name)
        if len(kept) == len(tokens):
            raise ConfigError(f"There is no token named '{name}' in {path}; `token list` shows those there are.")
        _write(path, kept)


class TokenStore:
    """The tokens of a file that may change at any moment.

    A file that was damaged while the gateway runs leaves the tokens as they were, and is logged.

    Raises:
        ConfigError: the file is there and cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _signature(path)
        self._tokens = _indexed(read_tokens(path))

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, text: str) -> Token | None:
        """Whose token `text` is, or None; takes the same time however much of a guess is right."""
        self._refresh()
        digest = _digest(text)
        # The index sees only a hash, which a guesser cannot steer; the comparison that decides is constant-time.
        token = self._tokens.get(digest[:_INDEX_CHARACTERS])
        return token if token is not None and hmac.compare_digest(token.sha256, digest) else None

    def _refresh(self) -> None:
        signature = _signature(self._path)
        if signature == self._seen:
            return
        self._seen = signature
        try:
            self._tokens = _indexed(read_tokens(self._path))
        except ConfigError as error:
            log.error("token file not taken over", error=error.message)
        else:
            log.info("token file taken over", tokens=len(self._tokens))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _indexed(tokens: tuple[Token, ...]) -> dict[str, Token]:
    return {token.sha256[:_INDEX_CHARACTERS]: token for token in tokens}


def _signature(path: Path) -> tuple[int, int, int] | None:
    """What differs once the file was replaced or written; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps two commands from losing each other's token."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ConfigError(f"The token file {path} cannot be written: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, tokens: tuple[Token, ...]) -> None:
    """Replaces the file at once, so that a gateway never reads half of it; mode 0600."""
    text = msgspec.json.format(msgspec.json.encode(_File(tokens)), indent=1) + b"\n"
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(descriptor, "wb") as stream:
            if os.geteuid() == 0:  # an administrator's command must not take the file away from the gateway's user
                owner = (path if path.exists() else path.parent).stat()
                os.fchown(stream.fileno(), owner.st_uid, owner.st_gid)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        with suppress(OSError):
            Path(temporary).unlink()
        raise ConfigError(f"The token file {path} cannot be written: {error.strerror}.") from error
