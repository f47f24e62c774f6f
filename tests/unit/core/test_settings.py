from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from firstline_core.errors import ConfigError
from firstline_core.settings import load


class Api(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: int = 8080
    open_metrics: bool = False


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: str
    url: str = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    api: Api = Api()
    links: tuple[Link, ...] = ()


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    return file


def test_each_source_wins_over_the_one_before(tmp_path: Path) -> None:
    file = written(tmp_path, '[api]\nhost = "::1"\nport = 1\n')
    environ = {"X_API__PORT": "2", "X_API__OPEN_METRICS": "true", "OTHER_API__PORT": "9"}
    assert load(Settings, file=file).api == Api(host="::1", port=1)
    assert load(Settings, file=file, environ=environ, prefix="X_").api == Api(host="::1", port=2, open_metrics=True)
    assert load(Settings, file=file, environ=environ, prefix="X_", overrides={"api.port": 3}).api.port == 3
    assert load(Settings, overrides={"api.port": None}).api.port == 8080


def test_a_list_comes_from_the_environment_as_json() -> None:
    settings = load(Settings, environ={"X_LINKS": '[{"kind": "http", "url": "u"}]'}, prefix="X_")
    assert settings.links == (Link(kind="http", url="u"),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[api]\nhost = 'x'\nprot = 1\n", "agent.toml:3 has an unknown key 'api.prot'; did you mean 'port'?"),
        ("[apo]\nport = 1\n", "agent.toml:1 has an unknown key 'apo'; did you mean 'api'?"),
        ("\n[api]\nport = 'no'\n", "agent.toml:3, 'api.port': expected `int`, got `str`."),
        ("[[links]]\nkind = 'a'\n[[links]]\nkind = 'b'\nulr = 'c'\n", "did you mean 'url'?"),
        ("[[links]]\nurl = 'a'\n", "missing required field `kind`"),
        ("[api\n", "is not valid TOML"),
    ],
)
def test_a_bad_key_is_named_with_file_line_and_suggestion(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Settings, file=written(tmp_path, text))
    assert said in caught.value.message


def test_a_variable_or_flag_that_makes_no_sense_is_named() -> None:
    with pytest.raises(ConfigError, match=r"environment variable X_API__PRT has an unknown key 'api.prt'"):
        load(Settings, environ={"X_API__PRT": "1"}, prefix="X_")
    with pytest.raises(ConfigError, match=r"flag for api.port, 'api.port': expected `int`"):
        load(Settings, overrides={"api.port": "many"})


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no configuration file"):
        load(Settings, file=tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(Settings, file=tmp_path)
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(Settings, file=binary)
