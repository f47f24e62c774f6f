"""Seals: a record on a disk is exactly what was written, or is refused. Each is bound to its context (`about`).

A sealed record starts with a byte for the kind of seal, and then

    1   16 bytes BLAKE2b of context and content, the content                  (finds every damage; hides nothing)
    2   4 bytes of the key's name, 12 of nonce, AES-256-GCM of the content    (needs a key to read and to forge)

(NIST SP 800-38D; nonces are random, which is sound for 2^32 records of a key.) A seal is larger than its content by
at most `OVERHEAD_BYTES`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.storage.files import read_text, unreadable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_DIGEST_BYTES, _NAME_BYTES, _NONCE_BYTES = 16, 4, 12
OVERHEAD_BYTES = 33
HEAD_BYTES = 1 + _NAME_BYTES
"""Bytes at a record's start that identify its key."""
KEY_BYTES = 32
CREDENTIAL = "credential:"
"""Prefix of the name of a file that systemd passes on."""

DECODING_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, msgspec.MsgspecError)
"""What decoding raises for columns that have other types or values than were written; SQLite does not notice that."""

_PLAIN_HEAD, _ENCRYPTED_HEAD = b"\1", b"\2"
_CONTENT_AT = HEAD_BYTES + _NONCE_BYTES
_KEYS_LIMIT_BYTES = 4096


class UnknownKeyError(IntegrityError):
    """The record may be intact, but its key is missing."""


class Seal:
    """Closes and opens records: encrypts with the first key; without keys it detects damage, and hides nothing.

    Opens records of any of the keys, and records that are not encrypted.

    Args:
        keys: `KEY_BYTES` each.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._ciphers = _ciphers(keys) if keys else {}
        self._first = _name(keys[0]) if keys else b""

    def close(self, content: bytes, about: bytes) -> bytes:
        """Returns the sealed record; `open` needs the same `about`."""
        if not self._ciphers:
            return _PLAIN_HEAD + _digest(content, about) + content
        nonce = os.urandom(_NONCE_BYTES)
        hidden = self._ciphers[self._first].encrypt(nonce, content, about)
        return _ENCRYPTED_HEAD + self._first + nonce + hidden

    def open(self, sealed: bytes, about: bytes) -> bytes:
        """Returns the content.

        Raises:
            UnknownKeyError: it was encrypted with a key that is missing.
            IntegrityError: it is not what was closed with `about`.
        """
        if not _is_encrypted(sealed):
            content = sealed[1 + _DIGEST_BYTES :]
            if sealed[:1] != _PLAIN_HEAD or sealed[1 : 1 + _DIGEST_BYTES] != _digest(content, about):
                raise IntegrityError("Its checksum does not fit: the disk has damaged it.")
            return content
        if not self._ciphers:
            raise UnknownKeyError("It is encrypted, and no key is set (encryption.key_file).")
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(bytes(sealed[1:HEAD_BYTES]))
        if cipher is None:
            raise UnknownKeyError("It is encrypted with a key that encryption.key_file does not hold.")
        try:
            return cipher.decrypt(bytes(sealed[HEAD_BYTES:_CONTENT_AT]), bytes(sealed[_CONTENT_AT:]), about)
        except (InvalidTag, ValueError) as error:
            raise IntegrityError("It does not decrypt: the disk has damaged it.") from error

    def has_key_of(self, head: bytes) -> bool:
        """Returns whether the key of a record is known, by the record's first bytes."""
        return not _is_encrypted(head) or bytes(head[1:HEAD_BYTES]) in self._ciphers


def _ciphers(keys: Sequence[bytes]) -> dict[bytes, AESGCM]:
    """Returns the cipher of each key by its name; of two keys with one name, that of the first."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return {_name(key): AESGCM(key) for key in reversed(keys)}


def _is_encrypted(sealed: bytes) -> bool:
    return sealed[:1] == _ENCRYPTED_HEAD


def read_keys(file: str, setting: str) -> tuple[bytes, ...]:
    """Reads keys from a file, one line of 64 hexadecimal digits each; returns none if no file is named.

    Args:
        file: its path, or `credential:NAME` for what systemd passes on (`LoadCredential=`).
        setting: name of the setting, for error messages.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    if not file:
        return ()
    path = _credential(file.removeprefix(CREDENTIAL), setting) if file.startswith(CREDENTIAL) else Path(file)
    try:
        lines = read_text(path, _KEYS_LIMIT_BYTES).split()
        keys = tuple(bytes.fromhex(line) for line in lines)
    except OSError as error:
        raise ConfigError(f"{setting}: {path} {unreadable(error)}") from error
    except ValueError:  # its message would quote the key
        keys = ()
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise ConfigError(
            f"{setting}: {path} holds no keys, which are lines of {2 * KEY_BYTES} hexadecimal digits; make one with "
            f"`openssl rand -hex {KEY_BYTES}`."
        )
    return keys


def _credential(name: str, setting: str) -> Path:
    folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if not folder or "/" in name:
        raise ConfigError(f"{setting}: systemd passed no credential '{name}'; see LoadCredential= in systemd.exec(5).")
    return Path(folder) / name


def _name(key: bytes) -> bytes:
    """Returns a short name of a key that reveals nothing about the key."""
    return hmac.digest(key, b"firstline key name", "sha256")[:_NAME_BYTES]


def _digest(content: bytes, about: bytes) -> bytes:
    return hashlib.blake2b(len(about).to_bytes(8, "little") + about + content, digest_size=_DIGEST_BYTES).digest()
