"""Both tiers at log level debug, with every secret that they have, while things go wrong: nothing is quoted anywhere.

The secrets: the passwords of both at the broker, PostgreSQL's, the key of what is encrypted, the device's private key,
the token of the agent's callers, and the API key of a device.
"""

import base64
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from support.broker import Broker, free_port
from support.commands import run_here
from support.databases import PostgreSql
from support.digits import scans
from support.forks import run_forked
from support.gateway import DIGITS
from support.keys import bearer
from support.processes import Module, TierProcess
from support.waiting import wait_until

from firstline_core.protocol.enrolment import DEVICES_PATH

STORE_PASSWORD = "Zw3-store-of-tuesday"
GATEWAY_PASSWORD = "Qx8-gateway-of-monday"
DEVICE_PASSWORD = "Vb5-press-of-friday"
WRONG_PASSWORD = "Kj1-nobody-of-sunday"
API_TOKEN = "Nd6-callers-of-thursday"
KEY = "4f1d9c27" * 8
ENVIRON = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}

pytestmark = pytest.mark.mosquitto


def _secret_file(file: Path, text: str) -> Path:
    file.touch(mode=0o600)
    file.write_text(text + "\n")
    return file


@dataclass
class Site:
    """Processes of both tiers: `outputs` is all that they and commands printed, and how they were called."""

    folder: Path
    postgresql: PostgreSql
    broker: Broker
    secret_files: set[Path] = field(default_factory=set)
    outputs: list[str] = field(default_factory=list)
    device_key: str = ""
    pids: list[int] = field(default_factory=list)

    @property
    def secrets(self) -> list[bytes]:
        """In each form in which they could be used."""
        pem = (self.folder / "state" / "identity" / "device.pem").read_bytes()
        key = load_pem_private_key(pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        number = key.private_numbers().private_value.to_bytes(32, "big")
        encryption = bytes.fromhex(KEY)
        body = b"".join(pem.partition(b"-----END")[0].splitlines()[1:])  # 48 characters of it are every key's
        words = (STORE_PASSWORD, GATEWAY_PASSWORD, DEVICE_PASSWORD, WRONG_PASSWORD, API_TOKEN, KEY)
        found = [one.encode() for one in (*words, self.device_key.removeprefix("flk_"), self.device_key[8:30])]
        found += [encryption, base64.b64encode(encryption), number, number.hex().encode(), body[50:90]]
        return [*found, KEY[:16].upper().encode(), str(encryption)[2:-1].encode()]

    def command(self, tier: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        done = run_forked(tier, *arguments, environ=ENVIRON, cwd=self.folder)
        self.outputs.append(done.stdout + done.stderr)
        return done

    @contextmanager
    def process(self, tier: Module, config: Path, *, forked: bool = False) -> Iterator[str]:
        """Runs a tier until the block ends; yields its URL. A forked process does not have its own command line."""
        log = self.folder / f"{config.stem}.log"
        with TierProcess(tier, "--config", config, log=log, environ=ENVIRON, cwd=self.folder, forked=forked) as running:
            self.pids.append(running.process.pid)
            yield running.url
            self.look_at_processes()
            running.stop()

    def look_at_processes(self) -> None:
        """Notes the command line and the environment of what runs, and of its children."""
        for pid in self.pids:
            for one in (pid, *descendants(pid)):
                for name in ("cmdline", "environ"):
                    try:
                        self.outputs.append(Path(f"/proc/{one}/{name}").read_bytes().decode(errors="surrogateescape"))
                    except OSError:  # it has ended
                        continue


def descendants(pid: int) -> list[int]:
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return [one for child in children for one in (child, *descendants(child))]


@pytest.fixture
def site(tmp_path: Path, postgresql_installed: None) -> Iterator[Site]:
    users = {"gateway": GATEWAY_PASSWORD, "press": DEVICE_PASSWORD}
    with PostgreSql() as postgresql, ExitStack() as stack:
        with psycopg.connect(postgresql.conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE keeper LOGIN PASSWORD '{STORE_PASSWORD}'".encode())
            connection.execute(b"CREATE DATABASE kept OWNER keeper")
            hba = postgresql._data / "pg_hba.conf"
            hba.write_text(f"host all keeper 127.0.0.1/32 scram-sha-256\n{hba.read_text()}")
            connection.execute(b"SELECT pg_reload_conf()")
        (tmp_path / "broker").mkdir()
        broker = stack.enter_context(Broker(tmp_path / "broker", users=users))
        found = Site(tmp_path, postgresql, broker)
        folder = tmp_path / "secrets"
        folder.mkdir(mode=0o700)
        for name, text in (
            *(("store", STORE_PASSWORD), ("gateway", GATEWAY_PASSWORD), ("press", DEVICE_PASSWORD)),
            *(("wrong", WRONG_PASSWORD), ("key", KEY), ("torn-key", KEY[:-3]), ("callers", f"app:{API_TOKEN}")),
        ):
            found.secret_files.add(_secret_file(folder / name, text))
        yield found


def gateway_toml(site: Site, name: str = "gateway", *, store: str = "store", broker: str = "gateway") -> Path:
    file = site.folder / f"{name}.toml"
    secrets = site.folder / "secrets"
    url = f"postgresql+psycopg://keeper@127.0.0.1:{site.postgresql.port}/kept"
    file.write_text(
        f'[api]\nport = 0\n[tls]\nenabled = true\nhosts = ["127.0.0.1"]\n[models]\ndirectory = "models"\n'
        f'[store]\nurl = "{url}"\npassword_file = "{secrets / store}"\n'
        f'[mqtt]\nenabled = true\nport = {site.broker.port}\nusername = "gateway"\n'
        f'password_file = "{secrets / broker}"\n[log]\nlevel = "debug"\n'
    )
    return file


def agent_toml(
    site: Site, url: str, name: str = "agent", *, broker: str = "press", key: str = "key", state: str = "state"
) -> Path:
    file = site.folder / f"{name}.toml"
    secrets = site.folder / "secrets"
    file.write_text(
        f'[agent]\nstate_dir = "{state}"\n[api]\nport = 0\ntoken_file = "{secrets / "callers"}"\n'
        f'[models]\ndirectories = ["{DIGITS}"]\n'
        f'[encryption]\nkey_file = "{secrets / key}"\n[policy]\nmin_threshold = 1.0\n'
        f'[[links]]\nkind = "http"\nurl = "{url}"\n'
        f'[[links]]\nkind = "mqtt"\nhost = "127.0.0.1"\nport = {site.broker.port}\nusername = "press"\n'
        f'password_file = "{secrets / broker}"\n[log]\nlevel = "debug"\n'
    )
    return file


def ask(site: Site, url: str, route: str) -> int:
    picture = scans(100)[len(site.outputs) % 100]
    headers = {"X-Firstline-Route": route, **bearer(API_TOKEN)}
    reply = httpx.post(
        f"{url}/firstline/v1/models/digits/infer", content=picture, headers=headers, timeout=30, trust_env=False
    )
    site.outputs.append(f"{reply.headers} {reply.text}")
    return reply.status_code


def get(site: Site, url: str, *paths: str, verify: Path | None = None) -> None:
    context = ssl.create_default_context(cafile=verify) if verify is not None else True
    for path in paths:
        reply = httpx.get(f"{url}{path}", headers=bearer(API_TOKEN), verify=context, timeout=30, trust_env=False)
        site.outputs.append(f"{reply.headers} {reply.text}")


def ask_with_similar_tokens(site: Site, url: str, token: str, verify: Path) -> set[int]:
    """Sends requests of strangers and callers, with valid and nearly valid tokens; returns the statuses."""
    statuses = set()
    with httpx.Client(
        base_url=url, verify=ssl.create_default_context(cafile=verify), timeout=30, trust_env=False
    ) as http:
        for sent in (*(f"Bearer {near}" for near in (token, f"{token}x", token[:-1], f"{token} {token}", "")), token):
            for method, path in (
                *(("GET", "/v2"), ("GET", "/firstline/v1/status"), ("GET", "/nothing")),
                ("POST", "/firstline/v1/models/digits/infer"),
            ):
                content = b"no picture" if method == "POST" else None
                reply = http.request(method, path, headers={"Authorization": sent.strip()}, content=content)
                site.outputs.append(f"{reply.headers} {reply.text}")
                statuses.add(reply.status_code)
    return statuses


def test_nothing_quotes_a_secret_whatever_goes_wrong(site: Site) -> None:
    shutil.copytree(DIGITS, site.folder / "models" / "digits")
    gateway_config, authority = gateway_toml(site), site.folder / "identity" / "authorities.pem"
    created = site.command("firstline_gateway", "key", "create", "ops", "--scope", "fleet", "--config", gateway_config)
    fleet_key = created.stdout.strip()
    assert created.returncode == 0, created.stderr
    key_command = ("key", "create", "cam", "--device", "--config", gateway_config)
    site.device_key = run_forked("firstline_gateway", *key_command, environ=ENVIRON, cwd=site.folder).stdout.strip()
    site.secret_files.add(_secret_file(site.folder / "secrets" / "link", site.device_key))
    with site.process("firstline_gateway", gateway_config) as gateway_url:
        context = ssl.create_default_context(cafile=authority)
        headers = {"Authorization": f"Bearer {fleet_key}"}
        invited = httpx.post(
            f"{gateway_url}{DEVICES_PATH}",
            json={"devices": ["press"]},
            headers=headers,
            verify=context,
            trust_env=False,
        )
        token = invited.json()["invitations"][0]["token"]
        site.secret_files.add(_secret_file(site.folder / "secrets" / "join", token))
        joined = ("join", gateway_url, "--token-file", str(site.folder / "secrets" / "join"))
        done = site.command("firstline_edge", *joined, "--set", f"agent.state_dir={site.folder / 'state'}")
        assert done.returncode == 0, done.stderr

        config = agent_toml(site, gateway_url)
        log = site.folder / "agent.log"
        with site.process("firstline_edge", config) as url:
            assert ask(site, url, "cloud") == 200
            wait_until(lambda: "connected" in log.read_text())
            get(site, url, "/firstline/v1/status", "/metrics")
            get(site, gateway_url, "/firstline/v1/store", "/metrics", "/v2", verify=authority)
            assert ask_with_similar_tokens(site, url, API_TOKEN, authority) >= {200, 400, 401, 404}
            assert ask_with_similar_tokens(site, gateway_url, site.device_key, authority) >= {200, 400, 401, 404}
            for arguments in (
                *(["status"], ["status", "-o", "json"], ["doctor", "-o", "json"], ["purge"], ["explain", "nobody"]),
                ["run"],
            ):
                site.command("firstline_edge", *arguments, "--config", config)
            site.postgresql.stop(kill=True)
            get(site, gateway_url, "/firstline/v1/store", verify=authority)
            wait_until(lambda: "refuse" in (site.folder / "gateway.log").read_text())
            site.broker.stop()
            for route in ("auto", "cloud"):
                assert ask(site, url, route) == 200
            get(site, url, "/firstline/v1/status")
            site.broker.start()
            site.look_at_processes()

        # An agent with an API key whose password is wrong, one whose key is torn, and one whose private key the
        # disk has damaged.
        mistaken = agent_toml(site, gateway_url, "mistaken", broker="wrong", state="state-of-cam")
        token_file = site.folder / "secrets" / "link"
        with_key = f'url = "{gateway_url}"\ntoken_file = "{token_file}"\ntls_ca_file = "{authority}"\n'
        mistaken.write_text(mistaken.read_text().replace(f'url = "{gateway_url}"\n', with_key))
        with site.process("firstline_edge", mistaken, forked=True) as url:
            assert ask(site, url, "cloud") == 200
            wait_until(lambda: "not authori" in (site.folder / "mistaken.log").read_text().lower())
            ask(site, url, "cloud")
            get(site, url, "/firstline/v1/status")
            site.command("firstline_edge", "doctor", "--config", site.folder / "mistaken.toml")
        with site.process("firstline_edge", agent_toml(site, gateway_url, "torn", key="torn-key"), forked=True) as url:
            assert ask(site, url, "auto") == 200
            get(site, url, "/firstline/v1/status")
        device = site.folder / "state" / "identity" / "device.pem"
        pem = device.read_bytes()
        device.write_bytes(pem.replace(b"PRIVATE KEY", b"PRIVATE KEX"))
        with site.process("firstline_edge", agent_toml(site, gateway_url, "damaged"), forked=True) as url:
            get(site, url, "/firstline/v1/status")
            site.command("firstline_edge", "doctor", "--config", site.folder / "damaged.toml")
        device.write_bytes(pem)

    # A gateway without its database, with a wrong password for it or for the broker, and with passwords in its URL.
    refused = site.command("firstline_gateway", "run", "--config", gateway_config)
    assert refused.returncode and "refuses" in refused.stderr
    site.postgresql.start()
    refused = site.command("firstline_gateway", "run", "--config", gateway_toml(site, "stranger", store="wrong"))
    assert refused.returncode and "password authentication failed" in refused.stderr
    with site.process("firstline_gateway", gateway_toml(site, "unknown", broker="wrong"), forked=True):
        wait_until(lambda: "not authori" in (site.folder / "unknown.log").read_text().lower())
    for url in (
        f"postgresql+psycopg://keeper:{STORE_PASSWORD}@127.0.0.1/kept",
        f"postgresql+psycopg://keeper@127.0.0.1/kept?password={STORE_PASSWORD}",
        f"postgresql+psycopg://keeper@127.0.0.1:{free_port()}/kept?passfile=x&Password={STORE_PASSWORD}",
        f"postgres://keeper:{STORE_PASSWORD}@127.0.0.1/kept",
        f"postgresql+psycopg://keeper:{STORE_PASSWORD}@[127.0.0.1/kept",
        f"postgresql+psycopg://keeper:{STORE_PASSWORD}@h\u2100/kept",
    ):
        file = site.folder / "url.toml"
        file.write_text(f'[store]\nurl = "{url}"\n')
        refused = run_here("check", "--config", file)
        site.outputs.append(refused.stdout + refused.stderr)
        assert refused.returncode == 2, refused.stderr
        file.unlink()

    secrets = site.secrets
    for text in site.outputs:
        encoded = text.encode(errors="surrogateescape")
        for secret in secrets:
            assert secret not in encoded, text[:2000]
    assert len(site.outputs) > 40
    read = 0
    for path in sorted(site.folder.rglob("*")):
        if path.is_file() and path not in site.secret_files and path != device:
            content = path.read_bytes()
            read += len(content)
            for secret in secrets:
                assert secret not in content, path
    assert read > 100_000
    debugged = [log for log in site.folder.glob("*.log") if '"debug"' in log.read_text() or "debug" in log.read_text()]
    assert len(debugged) >= 2
