from collections.abc import Mapping
from pathlib import Path

import pytest

from firstline_core.errors import ConfigError, ModelLoadError
from firstline_core.storage.setting_places import Sources, line_of, naming_key, quoted, spelled

_ENGINE = "executors.gpu-1.engine"
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
        ("api.token_file is empty, but api.host is 0.0.0.0.", "agent.toml:2: api.token_file is"),
        ("api.token_file is empty.", "agent.toml:1: api"),
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
def test_errors_name_winning_sources(environ: Mapping[str, str], overrides: Mapping[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as caught, Sources(None, None, environ, "X_", overrides).naming(_is_key):
        raise ConfigError("api.host is '::'.")
    assert caught.value.message == f"{named} is '::'."


def test_errors_name_the_key_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(_TEXT)
    with pytest.raises(ModelLoadError) as caught, naming_key(tmp_path / "agent.toml", "links[0].kind"):
        raise ModelLoadError("It is damaged.")
    assert caught.value.message == f"{tmp_path}/agent.toml:5, 'links[0].kind': It is damaged."


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ('[executors.cpu]\nengine = "local"\n[executors.GPU]\nengine = "oip"\n', "GPU", 4),
        ('[executors.gpu]\nengine = "local"\n[executors.2gpu]\nengine = "oip"\n', "2gpu", 4),
        ('[executors.gpu]\nengine = "local"\n[executors."gpu.1"]\nengine = "oip"\n', "gpu.1", 4),
        ('[executors]\ngpu = { engine = "local" }\nGPU = { engine = "oip" }\n', "GPU", 3),
        ('executors = { gpu = { engine = "local" }, "g 1" = { engine = "oip" } }\n', "g 1", 1),
        ('executors.gpu.engine = "local"\nexecutors."gpu.1".engine = "oip"\n', "gpu.1", 2),
    ],
)
def test_any_name_of_a_table_has_its_line(tmp_path: Path, text: str, name: str, line: int) -> None:
    (tmp_path / "agent.toml").write_text(text)
    with pytest.raises(ConfigError) as caught, Sources(tmp_path / "agent.toml").naming(_is_key):
        raise ConfigError(f"executors.{quoted(name)}.engine is wrong.")
    assert caught.value.message.startswith(f"{tmp_path}/agent.toml:{line}: executors")


def test_a_name_of_a_table_may_come_from_a_variable(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(_TEXT)
    environ = {"X_EXECUTORS": '{"GPU.1": {"engine": "oip"}}', "X_EXECUTORS__GPU__ENGINE": "local"}
    sources = Sources(tmp_path / "agent.toml", None, environ, "X_")
    for name, variable in [("GPU.1", "X_EXECUTORS"), ("gpu", "X_EXECUTORS__GPU__ENGINE")]:
        with pytest.raises(ConfigError) as caught, sources.naming(_is_key):
            raise ConfigError(f"executors.{quoted(name)}.engine is wrong.")
        assert caught.value.message.startswith(f"the environment variable {variable}: executors.{quoted(name)}")


def test_an_absent_key_gets_a_variable_of_its_table(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(_TEXT)
    for environ, overrides, named in [
        ({"X_TLS__ENABLED": "true"}, {}, "the environment variable X_TLS__ENABLED"),
        ({}, {"tls.enabled": True}, "the command line"),
        ({"X_API__PORT": "1"}, {}, f"{tmp_path}/agent.toml"),
    ]:
        sources = Sources(tmp_path / "agent.toml", None, environ, "X_", overrides)
        with pytest.raises(ConfigError) as caught, sources.naming(_is_key):
            raise ConfigError("tls.hosts is empty.")
        assert caught.value.message == f"{named}: tls.hosts is empty."


@pytest.mark.parametrize(
    "text",
    [
        'hosts = [\n  "a", # the first\n  "b" # the last\n]\n[api]\nport = 1\n',
        '# [api]\nhosts = [ # all\n  "port",\n]\napi = { host = "[api]", port = 1 }\n',
        "\n\nhosts = []\n[api]\n# port = 2\nport = 1 # ]\n",
    ],
)
def test_comments_do_not_move_a_line(text: str) -> None:
    assert line_of(text, ["api", "port"]) == f":{text.count(chr(10), 0, text.index('port = 1')) + 1}"


def test_an_item_of_a_list_with_comments_has_its_line() -> None:
    text = 'links = [ # both\n  { kind = "http" }, # the first\n  { kind = "mqtt" }, # the second\n]\n'
    assert line_of(text, ["links", "1", "kind"]) == ":3"


@pytest.mark.parametrize(("start", "end"), [(b"", b"\r\n"), (b"\xef\xbb\xbf", b"\n"), (b"\xef\xbb\xbf", b"\r\n")])
def test_files_of_windows_have_lines(tmp_path: Path, start: bytes, end: bytes) -> None:
    file = tmp_path / "agent.toml"
    file.write_bytes(start + _TEXT.encode().replace(b"\n", end))
    with pytest.raises(ConfigError, match=r"agent\.toml:2: api\.host"), Sources(file).naming(_is_key):
        raise ConfigError("api.host is wrong.")
    with pytest.raises(ConfigError, match=r"agent\.toml:8, 'executors\.gpu-1\.engine': "), naming_key(file, _ENGINE):
        raise ConfigError("It is wrong.")


def test_a_key_is_quoted_as_in_toml(tmp_path: Path) -> None:
    path = ["edge", "0", "inputs", "x.1", "preprocess"]
    assert spelled(path) == 'edge[0].inputs."x.1".preprocess'
    (tmp_path / "r.toml").write_text('[[edge]]\nfile = "a"\n[edge.inputs."x.1"]\npreprocess = ""\n')
    with pytest.raises(ConfigError) as caught, naming_key(tmp_path / "r.toml", path):
        raise ConfigError("It is wrong.")
    assert caught.value.message == f"{tmp_path}/r.toml:4, '{spelled(path)}': It is wrong."


def _is_key(path: list[str]) -> bool:
    return path[0] in ("api", "links", "executors", "tls")
