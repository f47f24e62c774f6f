from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from firstline_core.errors import ConfigError
from firstline_gateway.tokens import TokenStore, create_token, read_tokens, revoke_token

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "etc" / "tokens.json"


def test_a_token_is_known_by_its_text_which_is_stored_nowhere(file: Path) -> None:
    text = create_token(file, "press-7", "device", NOW)
    assert len(text) == len("flt_") + 43
    token = TokenStore(file).find(text)
    assert token is not None
    assert (token.principal, token.created) == ("device:press-7", NOW)
    assert text not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("wrong", ["", "flt_", "x" * 47, "é"])
def test_any_other_text_is_nobody(file: Path, wrong: str) -> None:
    create_token(file, "a", "application", NOW)
    assert TokenStore(file).find(wrong) is None


def test_part_of_a_hash_is_not_enough(file: Path) -> None:
    text = create_token(file, "a", "application", NOW)
    digest = read_tokens(file)[0].sha256
    file.write_text(file.read_text().replace(digest, digest[:16] + "0" * 48))
    assert TokenStore(file).find(text) is None


def test_a_running_store_sees_new_and_revoked_tokens(file: Path) -> None:
    store = TokenStore(file)
    assert len(store) == 0
    first = create_token(file, "a", "application", NOW)
    assert store.find(first) is not None
    second = create_token(file, "b", "device", NOW)
    revoke_token(file, "a")
    assert store.find(first) is None
    assert store.find(second) is not None


def test_a_file_damaged_while_it_is_used_leaves_the_tokens_as_they_were(file: Path) -> None:
    text = create_token(file, "a", "application", NOW)
    store = TokenStore(file)
    file.write_text("{")
    assert store.find(text) is not None
    with pytest.raises(ConfigError, match=r"tokens\.json is damaged"):
        TokenStore(file)


def test_names_are_unique_and_sensible(file: Path) -> None:
    create_token(file, "a", "application", NOW)
    with pytest.raises(ConfigError, match="'a' exists"):
        create_token(file, "a", "device", NOW)
    for wrong in ("a/b", "b\n", ""):
        with pytest.raises(ConfigError, match="cannot name a token") as caught:
            create_token(file, wrong, "device", NOW)
        assert caught.value.message.isprintable()
    with pytest.raises(ConfigError, match="no token named 'b'"):
        revoke_token(file, "b")
    assert [token.name for token in read_tokens(file)] == ["a"]


def test_commands_at_the_same_moment_lose_nothing(file: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: create_token(file, f"t{number}", "device", NOW), range(24)))
    assert len(read_tokens(file)) == 24


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "etc").touch()
    with pytest.raises(ConfigError, match=r"tokens\.json cannot be written"):
        create_token(tmp_path / "etc" / "tokens.json", "a", "device", NOW)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_an_administrators_command_leaves_the_file_to_the_gateways_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    create_token(tmp_path / "tokens.json", "a", "device", NOW)
    assert (tmp_path / "tokens.json").stat().st_uid == 12345
