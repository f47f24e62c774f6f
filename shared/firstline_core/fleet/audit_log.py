"""The audit log: each entry has the hash of the one before, so that no entry can be changed, removed or inserted.

An attacker with access to the store can still rewrite the whole log, or cut off its end. So the gateway signs the head
of the log and people keep signed heads elsewhere: a log that does not contain such a head was rewritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from firstline_core.errors import IntegrityError
from firstline_core.types import Sha256

if TYPE_CHECKING:  # a health check and a command's help need no cryptography
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FIRST = "0" * 64
"""The previous hash of the first entry."""

_CONTEXT = b"firstline audit log head 1\n"  # separates these signatures from all others of the same key
_Hex = Annotated[str, Meta(pattern=r"^([0-9a-f]{2})*\Z", max_length=256)]


class Entry(Struct, frozen=True):
    """A decision of a person or a rule.

    Attributes:
        number: from 1, without gaps.
        at_s: wall time of the gateway.
        actor: a principal, or "rule:..." for an automatic decision.
        action: machine-readable, such as "rollout.start".
        subject: the object of the action.
        details: JSON, the figures behind the decision.
        previous: hash of the previous entry.
        sha256: of all fields above.
    """

    number: Annotated[int, Meta(ge=1)]
    at_s: float
    actor: str
    action: str
    subject: str
    details: str
    previous: Sha256
    sha256: Sha256 = FIRST

    def sealed(self) -> Entry:
        """Returns the entry with its hash."""
        fields = [self.number, self.at_s, self.actor, self.action, self.subject, self.details, self.previous]
        return replace(self, sha256=hashlib.sha256(msgspec.json.encode(fields)).hexdigest())


class Head(Struct, frozen=True):
    """The signed end of the log at one moment.

    Attributes:
        number: of the last entry; 0 for an empty log.
        sha256: of the last entry.
        at_s: time of the signature.
        public_key: Ed25519 key of the signer.
        signature: over all other fields.
        first: number of the first entry, which is above 1 for an export of a part of the log.
    """

    number: Annotated[int, Meta(ge=0)]
    sha256: Sha256
    at_s: float
    public_key: _Hex
    signature: _Hex = ""
    first: Annotated[int, Meta(ge=1)] = 1

    def signed(self, key: Ed25519PrivateKey) -> Head:
        """Returns the head with its signature; `public_key` must belong to this key."""
        return replace(self, signature=key.sign(self._signed_bytes()).hex())

    def check_signature(self) -> None:
        """Verifies the signature with the key that the head names.

        Raises:
            IntegrityError: the signature is not from that key.
        """
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public_key))
            key.verify(bytes.fromhex(self.signature), self._signed_bytes())
        except (InvalidSignature, ValueError) as error:
            raise IntegrityError(f"The head at entry {self.number} is not signed by the key that it names.") from error

    def _signed_bytes(self) -> bytes:
        return _CONTEXT + msgspec.json.encode([self.number, self.sha256, self.at_s, self.public_key, self.first])


def next_entry(head: tuple[int, str], *, at_s: float, actor: str, action: str, subject: str, details: str) -> Entry:
    """Returns the entry after the last one, given as (number, hash); (0, `FIRST`) for an empty log."""
    number, previous = head
    return Entry(number + 1, at_s, actor, action, subject, details, previous).sealed()


def verify_log(entries: Iterable[Entry], heads: Iterable[Head] = (), *, whole: bool = True) -> tuple[int, str]:
    """Verifies a log.

    Args:
        entries: in order.
        heads: signed heads that the log must contain.
        whole: the log starts with the first entry; otherwise with any.

    Returns:
        Number and hash of the last entry.

    Raises:
        IntegrityError: an entry was changed, removed or inserted, or a head belongs to another log.
    """
    heads = list(heads)
    for head in heads:
        head.check_signature()
    hashes = {0: FIRST}
    last = 0, FIRST
    signed = {head.number for head in heads}
    for entry in entries:
        if not whole and last == (0, FIRST):
            last = entry.number - 1, entry.previous
            hashes[last[0]] = last[1]
        number, previous = last
        if entry.number != number + 1:
            raise IntegrityError(f"Entry {number + 1} of the audit log is missing; entry {entry.number} follows.")
        if entry.previous != previous or entry.sealed().sha256 != entry.sha256:
            raise IntegrityError(f"Entry {entry.number} of the audit log was changed, or one before it was.")
        last = entry.number, entry.sha256
        if entry.number in signed:
            hashes[entry.number] = entry.sha256
    for head in heads:
        if head.number not in hashes:
            raise IntegrityError(f"The audit log ends at entry {last[0]}, but had entry {head.number} when signed.")
        if hashes[head.number] != head.sha256:
            raise IntegrityError(f"Entry {head.number} of the audit log is not the one that was signed.")
    return last
