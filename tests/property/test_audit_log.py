"""No change to an audit log goes unseen, wherever it is made."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from firstline_core.errors import IntegrityError
from firstline_core.fleet.audit_log import FIRST, Entry, Head, next_entry, verify_log

KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
WORDS = st.lists(st.text(max_size=5), min_size=1, max_size=8)


def log_of(words: list[str]) -> list[Entry]:
    entries: list[Entry] = []
    head = 0, FIRST
    for word in words:
        entries.append(next_entry(head, at_s=1.5, actor=word, action="x", subject=word, details="{}"))
        head = entries[-1].number, entries[-1].sha256
    return entries


def head_of(entries: list[Entry]) -> Head:
    return Head(entries[-1].number, entries[-1].sha256, 2.0, PUBLIC).signed(KEY)


@given(WORDS)
def test_unchanged_log_is_valid(words: list[str]) -> None:
    entries = log_of(words)
    assert verify_log(entries, [head_of(entries), head_of(entries[:1])]) == (len(words), entries[-1].sha256)


@given(WORDS, st.data())
def test_changed_entries_are_detected(words: list[str], data: st.DataObject) -> None:
    entries = log_of(words)
    head = head_of(entries)
    at = data.draw(st.integers(0, len(entries) - 1))
    kind = data.draw(st.sampled_from(["actor", "sealed", "dropped", "at_s", "number"]))
    if kind == "dropped":
        del entries[at]
    elif kind == "sealed":  # with a hash that fits: the next entry, or the head, still tells
        entries[at] = replace(entries[at], details='{"other":1}').sealed()
    elif kind == "number":
        entries[at] = replace(entries[at], number=entries[at].number + 1)
    else:
        entries[at] = replace(entries[at], **{kind: "somebody else" if kind == "actor" else 3.5})
    with pytest.raises(IntegrityError, match=r"(?i)entry|log"):
        verify_log(entries, [head])


@given(WORDS)
def test_rewritten_log_does_not_match_a_stored_head(words: list[str]) -> None:
    head = head_of(log_of(words))
    with pytest.raises(IntegrityError, match="not the one that was signed"):
        verify_log(log_of([*words[:-1], words[-1] + "!"]), [head])


def test_head_signed_by_another_key_is_refused() -> None:
    entries = log_of(["a"])
    forged = replace(head_of(entries), sha256=FIRST)
    with pytest.raises(IntegrityError, match="not signed"):
        verify_log(entries, [forged])
