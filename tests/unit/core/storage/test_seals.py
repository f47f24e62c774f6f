from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.storage import seals

KEY, OTHER = b"k" * 32, b"o" * 32
SEALS = [seals.Seal(), seals.Seal([KEY])]


@given(st.sampled_from(SEALS), st.binary(max_size=200), st.binary(max_size=20), st.data())
def test_every_flipped_bit_is_detected(seal: seals.Seal, content: bytes, about: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal.close(content, about))
    assert seal.open(bytes(sealed), about) == content
    assert len(sealed) <= len(content) + seals.OVERHEAD_BYTES
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(IntegrityError):
        seal.open(bytes(sealed), about)


@pytest.mark.parametrize("seal", SEALS)
@given(
    content=st.binary(max_size=50), about=st.binary(max_size=20), other=st.binary(max_size=20), cut=st.integers(0, 80)
)
def test_a_seal_is_bound_to_its_context(seal: seals.Seal, content: bytes, about: bytes, other: bytes, cut: int) -> None:
    sealed = seal.close(content, about)
    if other != about:
        with pytest.raises(IntegrityError):
            seal.open(sealed, other)
    if cut < len(sealed):
        with pytest.raises(IntegrityError):
            seal.open(sealed[:cut], about)


def test_a_new_first_key_replaces_the_old_one() -> None:
    old = seals.Seal([KEY]).close(b"payload", b"")
    assert b"payload" not in old
    both = seals.Seal([OTHER, KEY])
    assert both.open(old, b"") == b"payload"
    new = both.close(b"payload", b"")
    assert both.has_key_of(new[: seals.HEAD_BYTES])
    assert not seals.Seal([KEY]).has_key_of(new[: seals.HEAD_BYTES])
    assert not seals.Seal().has_key_of(new[: seals.HEAD_BYTES])
    for other in (seals.Seal([KEY]), seals.Seal()):
        with pytest.raises(seals.UnknownKeyError):
            other.open(new, b"")
    plain = seals.Seal().close(b"before", b"")
    assert both.has_key_of(plain[: seals.HEAD_BYTES])
    assert both.open(plain, b"") == b"before"  # written before there was a key


def test_keys_are_read_from_a_file_or_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text(f"\ufeff{OTHER.hex()}\n{KEY.hex()}\n")
    assert seals.read_keys(str(file), "encryption.key_file") == (OTHER, KEY)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert seals.read_keys("credential:key", "encryption.key_file") == (OTHER, KEY)
    assert seals.read_keys("", "encryption.key_file") == ()


@pytest.mark.parametrize("content", ["", "ab" * 31, "xy" * 32, "ab" * 32 + "\n" + "ab" * 16])
def test_an_invalid_key_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    with pytest.raises(ConfigError, match="openssl rand -hex 32") as refused:
        seals.read_keys(str(file), "encryption.key_file")
    assert not content or content[:8] not in refused.value.message


def test_an_unreadable_key_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        seals.read_keys(str(tmp_path / "none"), "encryption.key_file")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(ConfigError, match="no credential"):
        seals.read_keys("credential:key", "encryption.key_file")
