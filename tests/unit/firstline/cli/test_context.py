"""Contexts, and the order of flag, environment and context."""

import stat
from functools import partial
from pathlib import Path

import certifi
import pytest
from support.cli import in_one_line, json_of
from support.cli import run as run_command
from typer.testing import Result

from firstline.cli.contexts import contexts_file
from firstline.cli.options import GatewayOptions
from firstline_core.errors import ConfigError, UnauthorizedError

_VARIABLES = "FIRSTLINE_GATEWAY", "FIRSTLINE_KEY_FILE", "FIRSTLINE_CA", "FIRSTLINE_TOKEN", "FIRSTLINE_CONTEXT"


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ca.pem").write_bytes(Path(certifi.where()).read_bytes())
    for name in ("factory", "flag"):
        (tmp_path / f"{name}.key").write_text(f"key-of-{name}\n")


run, listed = partial(run_command, "context"), partial(json_of, "context", "list")


def factory() -> Result:
    return run("create", "factory", "--gateway", "https://factory:8080", "--key-file", "factory.key", "--ca", "ca.pem")


def test_a_context_is_created_listed_used_and_deleted(tmp_path: Path) -> None:
    factory()
    run("create", "lab", "--gateway", "http://127.0.0.1:8080")
    found = listed()
    assert found["current"] == "lab" and sorted(found["contexts"]) == ["factory", "lab"]
    assert run("use", "factory").stdout == "The context factory is in use: https://factory:8080.\n"
    shown = json_of("context", "get", "factory")
    assert shown["key_file"] == str(tmp_path / "factory.key") and shown["ca"] == str(tmp_path / "ca.pem")
    assert any(line.split()[:2] == ["*", "factory"] for line in run("list").stdout.splitlines())
    run("delete", "factory")
    assert listed()["current"] == ""


def test_a_context_that_cannot_work_is_refused() -> None:
    assert "is not the URL of a server" in run("create", "lab", "--gateway", "lab:8080", code=2).stderr
    absent = run("create", "lab", "--gateway", "http://127.0.0.1:8080", "--key-file", "absent.key", code=2)
    assert "--key-file: absent.key does not exist" in absent.stderr
    lab = ("create", "lab", "--gateway")
    assert "absent.pem does not exist" in run(*lab, "https://lab", "--ca", "absent.pem", code=2).stderr
    assert "has a user or a password" in run(*lab, "https://me:secret@lab", code=2).stderr
    assert listed()["contexts"] == {}
    factory()
    assert "Name the gateway of the context copy" in run("create", "copy", code=2).stderr


def test_a_file_that_nests_deeply_is_refused() -> None:
    contexts_file().parent.mkdir(parents=True)
    contexts_file().write_text('{"x": ' + "[" * 60_000)
    assert "correct or delete it" in in_one_line(run("list", code=2).stderr)


def test_a_user_without_an_account_has_no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # raises KeyError
    assert listed()["contexts"] == {}


def test_a_context_that_the_environment_overrides_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run("create", "lab", "--gateway", "http://127.0.0.1:8080/")
    factory()
    monkeypatch.setenv("FIRSTLINE_CONTEXT", "factory")
    assert "FIRSTLINE_CONTEXT is set, so commands use the context factory" in in_one_line(run("use", "lab").stderr)
    monkeypatch.setenv("FIRSTLINE_GATEWAY", "https://factory:8080/")
    assert "FIRSTLINE_GATEWAY is set, so commands use https://factory:8080/" in in_one_line(run("use", "lab").stderr)
    assert not run("use", "factory").stderr


def test_the_file_is_private_and_has_no_secret() -> None:
    factory()
    assert stat.S_IMODE(contexts_file().stat().st_mode) == 0o600
    assert "key-of-factory" not in contexts_file().read_text()


def test_a_flag_wins_over_the_environment_and_that_over_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    factory()
    found = GatewayOptions()
    assert (found.required_url(), found.required_key()) == ("https://factory:8080", "key-of-factory")
    assert found.found_ca is not None and found.found_ca.name == "ca.pem"
    monkeypatch.setenv("FIRSTLINE_TOKEN", "key-of-the-environment")
    assert GatewayOptions().required_key() == "key-of-factory"
    assert GatewayOptions("https://factory:8080").required_key() == "key-of-the-environment"
    assert GatewayOptions(key_file="flag.key").required_key() == "key-of-flag"


def test_a_contexts_key_goes_to_no_other_gateway() -> None:
    factory()
    other = GatewayOptions("https://other:8080")
    assert other.found_ca is None
    with pytest.raises(ConfigError, match=r"No API key is given; name its file with --key-file"):
        other.required_key()
    for own in ("https://factory:8080", "https://factory:8080/", "https://Factory:8080"):
        assert GatewayOptions(own).required_key() == "key-of-factory"


def test_only_its_gateway_gets_key_and_ca(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    factory()
    monkeypatch.setenv("FIRSTLINE_KEY_FILE", "flag.key")
    monkeypatch.setenv("FIRSTLINE_CA", "own.pem")
    of_context = GatewayOptions("", "flag.key", Path("own.pem"))
    assert of_context.required_key() == "key-of-factory"
    assert of_context.found_ca is not None and of_context.found_ca.name == "ca.pem"
    stderr = capsys.readouterr().err
    assert "FIRSTLINE_KEY_FILE is not used" in stderr and "FIRSTLINE_CA is not used" in stderr
    lab = GatewayOptions("http://lab:8080", "flag.key", Path("own.pem"))
    assert (lab.required_key(), lab.found_ca) == ("key-of-flag", Path("own.pem"))
    monkeypatch.setenv("FIRSTLINE_GATEWAY", "https://other:8080")
    with pytest.raises(ConfigError, match="No API key is given"):
        lab.required_key()
    assert GatewayOptions("https://other:8080", "flag.key").required_key() == "key-of-flag"


@pytest.mark.parametrize(
    ("key_file", "variables", "source"),
    [
        ("", {"FIRSTLINE_TOKEN": "wrong"}, "FIRSTLINE_TOKEN: http://lab:8080 answers: no"),
        ("flag.key", {"FIRSTLINE_KEY_FILE": "flag.key"}, "FIRSTLINE_KEY_FILE flag.key: "),
        ("flag.key", {"FIRSTLINE_TOKEN": "wrong"}, "--key-file flag.key: "),
    ],
)
def test_a_refused_key_is_named_by_its_source(
    key_file: str, variables: dict[str, str], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnauthorizedError) as refused, GatewayOptions("http://lab:8080", key_file).fleet():
        raise UnauthorizedError("no")
    assert refused.value.message.startswith(source)


def test_a_refused_key_of_a_context_is_named() -> None:
    factory()
    with pytest.raises(UnauthorizedError, match=r"^The context's key file .*factory\.key: "), GatewayOptions().fleet():
        raise UnauthorizedError("no")


def test_the_environment_reaches_a_command_and_selects_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    run("create", "lab", "--gateway", "http://127.0.0.1:8080")
    factory()
    monkeypatch.setenv("FIRSTLINE_CONTEXT", "lab")
    assert GatewayOptions().required_url() == "http://127.0.0.1:8080"
    for name, value in zip(_VARIABLES, ("http://127.0.0.1:9", "flag.key", "nowhere.pem"), strict=False):
        monkeypatch.setenv(name, value)
    assert "nowhere.pem does not exist" in run_command("device", "list", code=2).stderr
    flag = run_command("device", "list", "--key-file", "absent.key", code=2)
    assert "--key-file: absent.key does not exist" in flag.stderr


def test_an_unknown_context_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    factory()
    monkeypatch.setenv("FIRSTLINE_CONTEXT", "gone")
    with pytest.raises(ConfigError, match="There is no context 'gone' in"):
        GatewayOptions().required_url()
