import json
import resource
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from firstline_core.errors import ConfigError
from firstline_core.storage import settings
from firstline_core.storage.setting_places import Sources


class Api(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: int = 8080
    open_metrics: bool = False


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: str
    url: str = ""


class Kind(StrEnum):
    FULL = "full"
    EDGE = "edge"


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    providers: tuple[str, ...] = ()
    level: Literal["debug", "info"] | None = None
    kind: Kind = Kind.FULL
    measured: dict[str, float] = {}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    api: Api = Api()
    run: Run | None = None
    links: tuple[Link, ...] = ()
    peers: dict[str, Link] = {}
    sizes: dict[str, int] = {}


def load(kind: type[Settings], warn: Callable[[str], None] | None = None, **sources: Any) -> Settings:
    return settings.load(kind, Sources(**sources), **({} if warn is None else {"warn": warn}))


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


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_a_file_of_windows_has_lines(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "c.toml").write_bytes(start + b'[api]\r\nhost = "::1"\r\nprot = 1\r\n')
    with pytest.raises(ConfigError, match=r"c\.toml:3 has an unknown key 'api\.prot'; did you mean 'api\.port'"):
        load(Settings, file=tmp_path / "c.toml")


def test_lists_in_the_environment_are_json() -> None:
    settings = load(Settings, environ={"X_LINKS": '[{"kind": "http", "url": "u"}]'}, prefix="X_")
    assert settings.links == (Link(kind="http", url="u"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[[links]]\nkind = 'a'\n[[links]]\nkind = 'b'\nulr = 'c'\n",
            "agent.toml:5 has an unknown key 'links[1].ulr'; did",
        ),
        (
            "[[links]]\nkind = 'a'\n\n[[links]]\nurl = 'a'\n",
            "agent.toml:4 has no key 'links[1].kind'; add `kind = \"...\"` (text).",
        ),
        ("\napi.prot = 1\n", "agent.toml:2 has an unknown key 'api.prot'; did you mean 'api.port'?"),
        ("\napi.port = 'x'\n", "agent.toml:2, 'api.port', is 'x'; use an integer"),
        ("api = { host = 'x', prot = 1 }\n", "agent.toml:1 has an unknown key 'api.prot'"),
        (
            "links = [\n  { kind = 'a' },\n  { kind = 'b', ulr = 1 },\n]\n",
            "agent.toml:3 has an unknown key 'links[1].ulr'",
        ),
        ("[run]\nproviders = [\n 'a',\n 3,\n]\n", "agent.toml:2, 'run.providers[1]', is 3; use text."),
        ('# [api]\n[api]\nhost = """\nport = \'x\'\n"""\nport = \'y\'\n', "agent.toml:6, 'api.port'"),
        ("[run]\n[run.measured]\nedge = 'x'\n", "agent.toml:3, 'run.measured.edge', is 'x'; use a number."),
        (
            "sizes = { a = 1 }\n[peers.b]\nkind = 'x'\n[peers.c]\nkind = 'y'\nulr = 1\n",
            "agent.toml:6 has an unknown key 'peers.c.ulr'; did you mean 'peers.c.url'?",
        ),
        (
            "[run]\nlevel = 'INFO'\n",
            "agent.toml:2, 'run.level', is 'INFO'; use one of debug, info; did you mean 'info'?",
        ),
        ("[run]\nkind = 'x'\n", "'run.kind', is 'x'; use one of full, edge."),
        ("[run]\nlevell = 'x'\n", "did you mean 'run.level'?"),
    ],
)
def test_an_unknown_key_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Settings, file=written(tmp_path, text))
    assert message in caught.value.message


def test_a_flag_without_a_section_is_named() -> None:
    with pytest.raises(ConfigError, match="the command line has an unknown key 'port'"):
        load(Settings, overrides={"port": "9000"})


@pytest.mark.parametrize(
    "environ",
    [{"X_LINKS": "http,mqtt"}, {"X_LINKS": "['http']"}, {"X_LINKS__0__KIND": "http"}, {"X_RUN__PROVIDERS": "CPU"}],
)
def test_a_list_in_a_variable_is_json(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"use a list of .*, as JSON such as '\[.*\]'"):
        load(Settings, environ=environ, prefix="X_")


def test_variables_of_kubernetes_are_ignored() -> None:
    """https://kubernetes.io/docs/tutorials/services/connect-applications-service/#environment-variables."""
    link = "tcp://10.0.0.11:8080"
    environ = {
        "X_SERVICE_HOST": "10.0.0.11", "X_SERVICE_PORT": "8080", "X_SERVICE_PORT_HTTP": "8080", "X_PORT": link,
        "X_PORT_8080_TCP": link, "X_PORT_8080_TCP_PROTO": "tcp", "X_PORT_8080_TCP_PORT": "8080",
        "X_PORT_8080_TCP_ADDR": "10.0.0.11", "X_": "", "X_API__PORT": "9",
    }  # fmt: skip
    warnings: list[str] = []
    assert load(Settings, environ=environ, prefix="X_", warn=warnings.append) == Settings(api=Api(port=9))
    assert warnings == [
        "Ignored in the environment: X_SERVICE_HOST, X_SERVICE_PORT, X_SERVICE_PORT_HTTP and 6 more; a setting is "
        "spelled X_SECTION__KEY, with two underscores."
    ]


@pytest.mark.parametrize(
    ("variable", "meant"),
    [("X_API_PORT", "X_API__PORT"), ("X_API_OPEN_METRIC", "X_API__OPEN_METRICS"), ("X_LINK", "X_LINKS")],
)
def test_a_misspelt_variable_is_reported_with_the_right_spelling(variable: str, meant: str) -> None:
    warnings: list[str] = []
    assert load(Settings, environ={variable: "1"}, prefix="X_", warn=warnings.append) == Settings()
    assert warnings == [f"The environment variable {variable} is ignored; did you mean {meant}?"]


def test_warnings_go_to_the_log_by_default(caplog: pytest.LogCaptureFixture) -> None:
    load(Settings, environ={"X_API_PORT": "1"}, prefix="X_")
    assert "did you mean X_API__PORT?" in caplog.text


def test_a_section_can_be_set_as_json() -> None:
    value: Any = {"host": "::1", "port": 3}
    assert load(Settings, environ={"X_API": json.dumps(value)}, prefix="X_").api == Api(**value)


def test_a_file_in_another_encoding_is_reported(tmp_path: Path) -> None:
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(Settings, file=binary)


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 5000 + "]" * 5000, "a = " + "{a=" * 3000 + "1" + "}" * 3000, "a = " + "1" * 10_000],
    ids=["arrays", "tables", "digits"],
)
def test_toml_that_is_too_deep_or_long_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "deep.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"deep\.toml is not valid TOML"):
        load(Settings, file=file)


def test_a_too_deeply_nested_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"FIRSTLINE_LINKS, 'links', is .*; use a list"):
        load(Settings, environ={"FIRSTLINE_LINKS": "[" * 100_000})


def test_a_first_configuration_that_a_full_disk_refuses_leaves_no_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"a\.toml cannot be written: File too large"):
            settings.create_initial(tmp_path / "a.toml", "[api]\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "a.toml").exists()
