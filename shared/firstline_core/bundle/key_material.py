"""Detects root metadata that lists one key under two ids. python-tuf compares ids only, which the signer chooses."""

from __future__ import annotations

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from securesystemslib.signer import Key
from tuf.api.metadata import Root


def duplicate_key(root: Root) -> str:
    """Returns the problem if a role has one key under two ids, whose signature would count twice; "" otherwise."""
    for name, role in root.roles.items():
        found: dict[tuple[str, bytes], str] = {}
        for keyid in role.keyids:
            other = found.setdefault(_material(root.keys[keyid]), keyid)
            if other != keyid:
                return f"for {name} the root names one key twice, as {other} and as {keyid}"
    return ""


def _material(key: Key) -> tuple[str, bytes]:
    """Returns the key independent of its encoding."""
    public = str(key.keyval.get("public", ""))
    try:
        if key.keytype == "ed25519":
            return key.keytype, bytes.fromhex(public)
        # The same bytes for one key, whatever its type is called and wherever its lines break.
        return "", load_pem_public_key(public.encode()).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        return key.keytype, public.encode()  # its signatures cannot be verified
