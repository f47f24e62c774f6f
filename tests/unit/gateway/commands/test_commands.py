"""The commands for keys and the authority, as an operator types them."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from firstline_core.units import DAY_S
from firstline_gateway.__main__ import main
from firstline_gateway.commands import keys
from firstline_gateway.identity import ca, enrolment
from firstline_gateway.identity.authorities import CRL_FILE
from firstline_gateway.identity.enrolment import Issued
from firstline_gateway.settings.load import load
from firstline_gateway.tables import open_database


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "gateway.toml"
    file.write_text("")
    return str(file)


def test_a_key_is_made_listed_and_revoked(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--scope", "fleet", "--scope", "infer", "--expires-days", "30", "--requests-per-s", "5"]
    assert main(["key", "create", "anna", *arguments, "--config", config, "-o", "json"]) == 0
    created = json.loads(capsys.readouterr().out)
    assert created["key"].startswith("flk_")
    assert (created["name"], created["scopes"], created["requests_per_s"]) == ("anna", ["fleet", "infer"], 5.0)
    assert main(["key", "create", "press-7", "--device", "--config", config]) == 0
    assert main(["key", "list", "--config", config]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2].startswith("application  anna  infer,fleet  20")
    assert printed[-2].endswith("  5 a second")
    assert printed[-1].startswith("device       press-7  infer  20")
    assert created["key"] not in "\n".join(printed)
    assert main(["key", "revoke", "anna", "--config", config]) == 0
    assert main(["key", "revoke", "anna", "--config", config]) == 2
    assert "no key named 'anna'" in capsys.readouterr().err


def test_a_user_without_a_name_creates_keys(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 4242")

    monkeypatch.setattr(keys, "getuser", unknown)
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert main(["key", "create", "anna", "--config", config]) == 0
    (file,) = Path(config).parent.rglob("*.db")
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT actor FROM audit_log_entries").fetchall() == [("user:uid:4242",)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--expires-days", "nan"], "it must be above 0 and at most 36500"),
        (["--requests-per-s", "0"], "it must be from 0.001 to 1000000"),
        (["--device", "--scope", "admin"], "the scope infer and no other"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(
    config: str, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["key", "create", "a", *arguments, "--config", config]) == 2
    assert sentence in capsys.readouterr().err


def test_the_authority_is_made_shown_and_exchanged(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*arguments: str) -> list[tuple[str, bool]]:
        assert main(["ca", *arguments, "--config", config, "-o", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)["authorities"]
        return [(row["subject"], row["signs"]) for row in rows]

    ((first, signs),) = shown("init")
    assert signs and first.startswith("CN=Firstline gateway ")
    assert shown("init") == shown("get") == [(first, True)]
    (second, _) = shown("prepare")[1]
    assert shown("switch") == [(second, True), (first, False)]
    assert shown("retire") == [(second, True)]


@pytest.mark.parametrize("verb", ["switch", "retire"])
def test_no_authority_is_replaced_before_renewals(config: str, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    for each in ("init", "prepare", *(["switch"] if verb == "retire" else [])):
        assert main(["ca", each, "--config", config]) == 0
    settings = load(Path(config), environ={})
    (Path(settings.identity.directory) / CRL_FILE).touch()  # a gateway has used the authority
    now_s, later_s = time.time(), time.time() + 60

    def issue(serial: str) -> Issued:
        return Issued(serial, "pem", now_s + DAY_S)

    def expired(serial: str) -> Issued:
        return Issued(serial, "pem", now_s - (settings.identity.renew_grace_days + 1) * DAY_S)

    with closing(open_database(settings.store)) as database, database.begin() as on:
        for device in ("press-7", "press-8", "revoked", "expired"):
            enrolment.invite(on, [(device, device)], by="", now_s=now_s, expires_s=later_s)
            enrolment.redeem(on, device, "key", expired if device == "expired" else issue, now_s, address="")
        enrolment.renew(on, "press-8", "press-8", lambda device: issue(f"{device}-next"), later_s)
        enrolment.revoke(on, "revoked", "", now_s)
    capsys.readouterr()
    assert main(["ca", verb, "--config", config]) == 2
    assert "1 device (press-7) renewed no certificate since" in capsys.readouterr().err
    assert main(["ca", verb, "--force", "--config", config]) == 0


def test_an_operators_authority_is_imported(config: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own = ca.create_authority(ca.new_key(), time.time())
    (tmp_path / "own.pem").write_text(own.pem)
    (tmp_path / "own.key").write_bytes(ca.key_pem(own.key))
    files = ["--certificate", str(tmp_path / "own.pem"), "--key", str(tmp_path / "own.key")]
    assert main(["ca", "init", *files[:2], "--config", config]) == 2
    assert "--certificate and --key together" in capsys.readouterr().err
    assert main(["ca", "init", *files, "--config", config]) == 0
    assert own.certificate.subject.rfc4514_string() in capsys.readouterr().out
    assert main(["ca", "init", *files, "--config", config]) == 2
    assert "There is an authority" in capsys.readouterr().err


def test_neither_a_health_check_nor_a_wrong_setting_loads_the_gateway() -> None:
    code = (
        "import sys; from firstline_gateway.__main__ import main; main(['status', 'http://127.0.0.1:9']); "
        "main(['check', '--config', 'missing']); main(['run', '--config', 'missing']); "
        "print(sorted({'sqlalchemy', 'cryptography', 'alembic', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_check_finds_what_prevents_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f'[models]\ndirectory = "{Path("models/digits").resolve()}"\n[identity]\ndirectory = "."\n')
    assert main(["check", "--config", str(config)]) == 0
    assert not (tmp_path / "gateway.db").exists(), "a check makes nothing"
    assert main(["ca", "init", "--config", str(config)]) == 0
    assert main(["check", "--config", str(config)]) == 0
    (tmp_path / "ca.key").unlink()
    assert main(["check", "--config", str(config)]) == 2
    assert "is gone; restore it from a backup" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("[api]\nport = 9", "http://127.0.0.1:9"),
        ('[api]\nport = 9\nhost = "::1"', "http://[::1]:9"),
        ('[api]\nport = 9\nhost = "0.0.0.0"\nplain_http = true', "http://127.0.0.1:9"),
        ('[api]\nport = 9\n[tls]\nenabled = true\nhosts = ["localhost", "127.0.0.1"]', "https://127.0.0.1:9"),
        ('[api]\nport = 9\nhost = "0.0.0.0"\n[tls]\nenabled = true\nhosts = ["localhost"]', "https://localhost:9"),
    ],
)
def test_status_asks_the_gateway_of_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, url: str
) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(text)
    assert main(["ca", "init", "--config", str(config)]) == 0
    capsys.readouterr()
    assert main(["status", "--config", str(config), "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["url"] == url
    assert "does not answer as a gateway" in found["error"]


@pytest.mark.parametrize(
    "body", ["<html>", "[]", '"models"', '{"models": 5}', '{"models": [], "executors": [], "webhooks": [1]}']
)
def test_status_refuses_the_answers_of_another_program(capsys: pytest.CaptureFixture[str], body: str) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["status", url]) == 1
        server.shutdown()
    assert capsys.readouterr().out == (
        f"{url} does not answer as a gateway: another program answers; is it running there?\n"
    )


def test_status_names_an_impossible_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "http://127.0.0.1:99999"]) == 1
    assert "0-65535" in capsys.readouterr().out


def test_an_unusable_authority_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.pem"
    file.write_text("nonsense")
    config = tmp_path / "gateway.toml"
    config.write_text("")
    assert main(["ca", "init", "--config", str(config), "--certificate", str(file), "--key", str(file)]) == 2
    assert f"--certificate {file} and --key {file} cannot be used: This is no certificate" in capsys.readouterr().err


def test_run_ignores_a_hangup_from_its_first_moment() -> None:
    """Before it parses its arguments, which imports the commands."""
    before = signal.getsignal(signal.SIGHUP)
    try:
        with pytest.raises(SystemExit):
            main(["run", "--no-such-option"])
        assert callable(signal.getsignal(signal.SIGHUP))
        os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
