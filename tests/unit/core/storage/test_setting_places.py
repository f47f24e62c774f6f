from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from firstline_core.errors import ConfigError, ModelLoadError
from firstline_core.storage.setting_places import Sources, naming_key

_TEXT = """\
[api]
host = "0.0.0.0"

[[links]]
kind = "http"

[executors.gpu-1]
engine = "oip"
"""


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("api.host is 0.0.0.0, but api.token_file is empty.", "agent.toml:2: api.host is"),
        ("api.token_file is empty, but api.host is 0.0.0.0.", "agent.toml:2: api.token_file is"),
        ("api.token_file is empty.", "agent.toml:1: api"),
        ("links[0].url is ''.", "agent.toml:4: links"),
        ("executors.gpu-1.engine is 'oip'.", "agent.toml:8: executors"),
        ("tls.hosts is empty.", "agent.toml: tls"),
        ("e.g. this names no setting.", "agent.toml: e.g."),
    ],
)
def test_an_error_gets_the_line_of_the_first_given_setting(tmp_path: Path, message: str, named: str) -> None:
    (tmp_path / "agent.toml").write_text(_TEXT)
    with pytest.raises(ConfigError) as caught, Sources(tmp_path / "agent.toml").naming(_is_key):
        raise ConfigError(message)
    assert caught.value.message.startswith(f"{tmp_path}/{named}")


@pytest.mark.parametrize(
    ("environ", "overrides", "named"),
    [
        ({"X_API__HOST": "::"}, {}, "the environment variable X_API__HOST: api.host"),
        ({"X_API__HOST": "::"}, {"api.host": "::", "api.port": None}, "the command line: api.host"),
        ({"X_API": "{}"}, {}, "the environment variable X_API: api.host"),
        ({}, {}, "api.host"),
    ],
)
def test_an_error_gets_the_source_that_won(
    environ: Mapping[str, str], overrides: Mapping[str, object], named: str
) -> None:
    with pytest.raises(ConfigError) as caught, Sources(None, None, environ, "X_", overrides).naming(_is_key):
        raise ConfigError("api.host is '::'.")
    assert caught.value.message == f"{named} is '::'."


def test_a_key_is_named_with_its_line_in_an_error_of_the_same_type(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(_TEXT)
    with pytest.raises(ModelLoadError) as caught, naming_key(tmp_path / "agent.toml", "links[0].kind"):
        raise ModelLoadError("It is damaged.")
    assert caught.value.message == f"{tmp_path}/agent.toml:5, 'links[0].kind': It is damaged."


def _is_key(path: list[str]) -> bool:
    return path[0] in ("api", "links", "executors", "tls")
