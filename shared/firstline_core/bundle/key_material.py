"""Whether a root has as many keys as it names: python-tuf tells them apart by id, which whoever signs chooses."""

from __future__ import annotations

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from securesystemslib.signer import Key
from tuf.api.metadata import Root


def named_twice(root: Root) -> str:
    """What is wrong where a role has one key under two ids, whose signature would count twice; "" where none has."""
    for name, role in root.roles.items():
        found: dict[tuple[str, bytes], str] = {}
        for keyid in role.keyids:
            other = found.setdefault(_material(root.keys[keyid]), keyid)
            if other != keyid:
                return f"for {name} the root names one key twice, as {other} and as {keyid}"
    return ""


def _material(key: Key) -> tuple[str, bytes]:
    """The key itself, however it is written."""
    public = str(key.keyval.get("public", ""))
    try:
        if key.keytype == "ed25519":
            return key.keytype, bytes.fromhex(public)
        # Of one key the same bytes, whatever its type is called and wherever its lines are broken.
        return "", load_pem_public_key(public.encode()).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        return key.keytype, public.encode()  # no signature by it can be checked
