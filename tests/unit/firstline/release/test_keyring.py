"""Private keys on disk."""

from pathlib import Path

import pytest

from firstline.release.keyring import read_key
from firstline_core.errors import ConfigError


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "my key.pem"
    file.touch(0o644)
    with pytest.raises(ConfigError) as refused:
        read_key(file)
    assert f"`chmod 600 '{file}'`" in refused.value.message
