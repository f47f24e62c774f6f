"""A private key in its own file: Ed25519, PKCS#8 in PEM, readable by its owner only, optionally encrypted."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from securesystemslib.signer import CryptoSigner

from firstline_core.errors import ConfigError
from firstline_core.storage.files import sync_folder

SUFFIX = ".key"
SHORT = 8
"""Letters of a key's id by which people name it."""

_LIMIT_BYTES = 16_384
_PUBLIC_TO_OTHERS = 0o077


def short(keyid: str) -> str:
    """A key's id as people name it."""
    return keyid[:SHORT]


def write_key(folder: Path, role: str, passphrase: str = "") -> tuple[CryptoSigner, Path]:
    """Makes a key, in a file that says the role and the key's id.

    Raises:
        ConfigError: it cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    signer = CryptoSigner(key)
    hidden: KeySerializationEncryption = NoEncryption()
    if passphrase:
        hidden = BestAvailableEncryption(passphrase.encode())
    file = folder / f"{role}-{short(signer.public_key.keyid)}{SUFFIX}"
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
            stream.flush()
            os.fsync(stream.fileno())
        sync_folder(folder)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.") from error
    return signer, file


def read_key(file: Path, passphrase: str = "") -> CryptoSigner:
    """A key from its file.

    Raises:
        ConfigError: the file cannot be read, other users can read it, it is not an Ed25519 key, or the passphrase is
            wrong.
    """
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            content = stream.read(_LIMIT_BYTES)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    if mode & _PUBLIC_TO_OTHERS:
        raise ConfigError(f"{file} can be read by others than its owner; `chmod 600 {file}`, and ask who has read it.")
    encrypted = b"BEGIN ENCRYPTED PRIVATE KEY" in content
    if encrypted and not passphrase:
        raise ConfigError(
            f"{file} is encrypted; name a file with its passphrase (--passphrase-file), or put it into "
            "FIRSTLINE_KEY_PASSPHRASE."
        )
    try:
        key = load_pem_private_key(content, passphrase.encode() if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = "is the passphrase right?" if encrypted else f"{error}."
        raise ConfigError(f"{file} cannot be used as a private key: {why}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file} holds another kind of key; `firstline keys` makes Ed25519 keys.")
    return CryptoSigner(key)
