"""The trail of what was decided: each entry has the hash of the one before, so none can be changed, left out or put in.

Whoever holds the store can still write a whole new trail, or cut off its end. So the gateway signs its head, people
keep what it signed elsewhere, and a trail that does not contain a head that they kept was rewritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Meta, Struct
from msgspec.structs import replace

from firstline_core.errors import IntegrityError
from firstline_core.storage.artefact import Sha256

FIRST = "0" * 64
"""What the first entry has as the hash of the one before."""

_CONTEXT = b"firstline audit trail head 1\n"  # a signature for this is good for nothing else
_Hex = Annotated[str, Meta(pattern=r"^([0-9a-f]{2})*\Z", max_length=256)]


class Entry(Struct, frozen=True):
    """Something that somebody, or a rule, decided.

    Attributes:
        number: from 1, without a gap.
        at_s: the gateway's wall time.
        actor: a principal, or "rule:..." where nobody was asked.
        action: a word for programs, such as "rollout.start".
        subject: what it was done to.
        details: JSON, the numbers that it rests on.
        previous: hash of the entry before.
        sha256: of all of the above.
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
        """The same, with its hash."""
        said = [self.number, self.at_s, self.actor, self.action, self.subject, self.details, self.previous]
        return replace(self, sha256=hashlib.sha256(msgspec.json.encode(said)).hexdigest())


class Head(Struct, frozen=True):
    """How far a trail went when it was signed.

    Attributes:
        number: of its last entry; 0 of an empty one.
        sha256: of its last entry.
        at_s: when it was signed.
        public_key: Ed25519, of whoever signed.
        signature: over all of the above.
    """

    number: Annotated[int, Meta(ge=0)]
    sha256: Sha256
    at_s: float
    public_key: _Hex
    signature: _Hex = ""

    def signed(self, key: Ed25519PrivateKey) -> Head:
        """The same, signed; `public_key` must be this key's."""
        return replace(self, signature=key.sign(self._said()).hex())

    def check_signature(self) -> None:
        """Raises where the key that it names did not sign it.

        Raises:
            IntegrityError: it did not.
        """
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public_key))
            key.verify(bytes.fromhex(self.signature), self._said())
        except (InvalidSignature, ValueError) as error:
            raise IntegrityError(f"The head at entry {self.number} is not signed by the key that it names.") from error

    def _said(self) -> bytes:
        return _CONTEXT + msgspec.json.encode([self.number, self.sha256, self.at_s, self.public_key])


def following(head: tuple[int, str], *, at_s: float, actor: str, action: str, subject: str, details: str) -> Entry:
    """The entry after (number, hash) of the last one; (0, `FIRST`) where there is none."""
    number, previous = head
    return Entry(number + 1, at_s, actor, action, subject, details, previous).sealed()


def check_trail(entries: Iterable[Entry], heads: Iterable[Head] = ()) -> tuple[int, str]:
    """Goes through a whole trail.

    Args:
        entries: from the first on.
        heads: signed earlier or now, which the trail must contain.

    Returns:
        Number and hash of its last entry.

    Raises:
        IntegrityError: an entry was changed, left out or put in, or a head was signed over another trail.
    """
    wanted = {0: FIRST}
    last = 0, FIRST
    kept = list(heads)
    for head in kept:
        head.check_signature()
    at = {head.number for head in kept}
    for entry in entries:
        number, previous = last
        if entry.number != number + 1:
            raise IntegrityError(f"Entry {number + 1} of the audit trail is missing; entry {entry.number} follows.")
        if entry.previous != previous or entry.sealed().sha256 != entry.sha256:
            raise IntegrityError(f"Entry {entry.number} of the audit trail was changed, or one before it was.")
        last = entry.number, entry.sha256
        if entry.number in at:
            wanted[entry.number] = entry.sha256
    for head in kept:
        if head.number not in wanted:
            raise IntegrityError(f"The audit trail ends at entry {last[0]}, but had entry {head.number} when signed.")
        if wanted[head.number] != head.sha256:
            raise IntegrityError(f"Entry {head.number} of the audit trail is not the one that was signed.")
    return last
