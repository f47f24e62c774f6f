"""The online key: it signs snapshots and timestamps, and nothing that would have a device believe another model.

Its private half is made in the gateway's identity folder and never leaves it; the root names its public half. An
attacker who controls the gateway can withhold metadata until it expires, or mix signed versions, and no more.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.signer import CryptoSigner

from firstline_core.errors import ConfigError, NotReadyError
from firstline_core.fleet.registry import OnlineKey
from firstline_gateway.identity import authorities

_PREFIX, _SUFFIX = "registry-", ".key"
_ID_LETTERS = 16


def signers(directory: Path) -> list[CryptoSigner]:
    """The keys that are there, the newest last.

    Raises:
        ConfigError: a file cannot be read, or is not such a key.
    """
    if not directory.exists():
        return []
    files = sorted(directory.glob(f"{_PREFIX}*{_SUFFIX}"), key=lambda file: file.stat().st_mtime_ns)
    return [_load(file) for file in files]


def signer_for(directory: Path, keyids: set[str]) -> CryptoSigner:
    """The key that the root names.

    Raises:
        NotReadyError: it is not here.
        ConfigError: a file cannot be read, or is not such a key.
    """
    for signer in signers(directory):
        if signer.public_key.keyid in keyids:
            return signer
    raise NotReadyError(
        f"This gateway has none of the online keys that the root metadata names, in {directory}: bring the file from "
        "the gateway that has it, or name this one's key (`firstline keys rotate online --gateway URL`)."
    )


def offered(directory: Path, *, fresh: bool, used: set[str]) -> OnlineKey:
    """Returns the public half of the key that a root is to name; creates the key if missing.

    Args:
        directory: the identity folder.
        fresh: for a rotation: one that is not in use.
        used: the ids that the current root names.

    Raises:
        ConfigError: the folder cannot be written.
    """
    with authorities.locked(directory):
        known = [signer for signer in signers(directory) if not (fresh and signer.public_key.keyid in used)]
        signer = known[-1] if known else _make(directory)
    return OnlineKey(signer.public_key.keyid, signer.public_key.to_dict())


def _make(directory: Path) -> CryptoSigner:
    signer = CryptoSigner.generate_ed25519()
    file = directory / f"{_PREFIX}{signer.public_key.keyid[:_ID_LETTERS]}{_SUFFIX}"
    authorities.write(file, signer.private_bytes, private=True)
    return signer


def _load(file: Path) -> CryptoSigner:
    try:
        key = load_pem_private_key(authorities.read(file), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file} holds no private key: {error}. Restore it from a backup.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file} holds no Ed25519 key; restore it from a backup.")
    return CryptoSigner(key)
