"""Private keys on disk."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from firstline.release.keyring import Keyring, read_key, write_key
from firstline_core.errors import ConfigError
from firstline_core.fleet.registry import OnlineKey


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "my key.pem"
    file.touch(0o644)
    with pytest.raises(ConfigError) as refused:
        read_key(file)
    assert f"`chmod 600 '{file}'`" in refused.value.message


def test_keys_whose_creation_was_interrupted_are_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    online = write_key(tmp_path, "online")[0].public_key
    keyring = Keyring(tmp_path / "keys")

    def create() -> list[Path]:
        return keyring.init(OnlineKey(online.keyid, online.to_dict()), 1.7e9)

    for step in ("write_key", "Keyring.keep_targets"):
        with monkeypatch.context() as full, pytest.raises(ConfigError):
            full.setattr(f"firstline.release.keyring.{step}", Mock(side_effect=ConfigError("The disk is full.")))
            create()
    assert len(create()) == 4 and keyring.root().signed.version == keyring.targets().signed.version == 1
    with pytest.raises(ConfigError, match="has keys already"):
        create()


@pytest.mark.parametrize(
    ("name", "fault"), [("my.key", "is not a key"), ("root-0123abcd.key", "does not exist; check the path")]
)
def test_a_named_file_that_is_no_key_is_refused(tmp_path: Path, name: str, fault: str) -> None:
    """Otherwise it would not sign, without a word."""
    (tmp_path / "my.key").touch()
    with pytest.raises(ConfigError, match=f"{name} {fault}"):
        Keyring(tmp_path, elsewhere=[tmp_path / name])


def test_a_passphrase_of_any_bytes_opens_its_key(tmp_path: Path) -> None:
    passphrase = b"geheim\xff".decode(errors="surrogateescape")  # as Python reads it from the environment
    signer, file = write_key(tmp_path, "targets", passphrase)
    assert read_key(file, passphrase).public_key == signer.public_key
