"""Join tokens: every one is read back, and has one spelling; test_fuzzing.py reads damaged ones."""

from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import ConfigError
from firstline_core.protocol.enrolment import format_join_token, format_secret, parse_join_token

HASH = st.binary(min_size=32, max_size=32)


@given(secret=HASH, ca_hash=HASH)
def test_every_token_is_read_back(secret: bytes, ca_hash: bytes) -> None:
    found = parse_join_token(format_join_token(format_secret(secret), ca_hash))
    assert found == (format_secret(secret), ca_hash)


@given(secret=HASH, ca_hash=HASH, position=st.integers(0, 90), letter=st.characters())
def test_a_token_has_one_spelling(secret: bytes, ca_hash: bytes, position: int, letter: str) -> None:
    text = format_join_token(format_secret(secret), ca_hash)
    changed = text[:position] + letter + text[position + 1 :]
    try:
        found = parse_join_token(changed)
    except ConfigError:
        return
    assert format_join_token(*found) == changed.strip()
