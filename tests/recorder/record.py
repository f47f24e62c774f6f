"""Record what both tiers answer, log and send for a few hundred seeded requests, or compare with an earlier record."""

from __future__ import annotations

import argparse
import difflib
import http.client
import json
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

CHECKOUT = Path(__file__).parents[2]
DIGITS = CHECKOUT / "models" / "digits"
LIMIT_BYTES = 1_500
GATEWAY = '[api]\nport = 0\n[models]\ndirectory = "models"\n'
AGENT = f"""\
[agent]
device_id = "recorder"
state_dir = "state"
[api]
port = 0
[models]
directories = ["device"]
[policy]
limit_bytes = {LIMIT_BYTES}
default_timeout_ms = 20_000
[hedge]
enabled = false
[audit]
per_hour = 0.0
[breaker]
open_ms = 200
open_max_ms = 500
[[links]]
kind = "http"
url = "http://127.0.0.1:{{port}}"
token_file = "device.token"
"""
TRANSPORT_HEADERS = {
    "accept", "accept-encoding", "authorization", "connection", "content-length", "host", "traceparent", "user-agent",
}  # fmt: skip
UNSTABLE_KEYS = {
    "ms", "error", "cause", "time", "at", "seconds", "request_id", "trace", "trace_id", "span_id", "crc", "certificate",
    "uncertified",
}  # fmt: skip
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
DIGEST = re.compile(r"[0-9a-f]{64}")


class Proxy:
    """A TCP proxy on loopback that remembers the heads and bodies of inference requests."""

    def __init__(self, far_port: int) -> None:
        self._far_port = far_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.up = True
        self.requests: list[bytes] = []
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Ends all connections; new ones are closed at once."""
        self.up = False
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            if not self.up:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._far_port))
            except OSError:
                near.close()
                continue
            self._open |= {near, far}
            sent = bytearray()
            threading.Thread(target=self._pump, args=(near, far, sent), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, None), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, sent: bytearray | None) -> None:
        try:
            while chunk := source.recv(65_536):
                if sent is not None:
                    sent += chunk
                    self._take(sent)
                target.sendall(chunk)
        except OSError:
            pass
        finally:
            for each in (source, target):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _take(self, sent: bytearray) -> None:
        """Moves whole requests from what was sent so far to the list."""
        while (end := sent.find(b"\r\n\r\n")) >= 0:
            head = bytes(sent[:end]).decode("latin-1")
            length = re.search(r"(?im)^content-length:\s*(\d+)", head)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(sent) < whole:
                return
            self.requests.append(bytes(sent[:whole]))
            del sent[:whole]


def normalised(value: Any) -> Any:
    """JSON without what differs between two runs."""
    if isinstance(value, dict):
        return {key: normalised(each) for key, each in sorted(value.items()) if key not in UNSTABLE_KEYS}
    if isinstance(value, list):
        return [normalised(each) for each in value]
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, str):
        if value.startswith(("[", "{")):
            try:
                return normalised(json.loads(value))
            except ValueError:
                pass
        return DIGEST.sub("DIGEST", UUID.sub("UUID", value))
    return value


def link_request(raw: bytes) -> dict[str, Any] | None:
    """What a request on the link says; None for probes."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    if "/infer" not in first:
        return None
    headers = dict(line.split(": ", 1) if ": " in line else line.split(":", 1) for line in lines)
    kept = {name.lower(): value for name, value in headers.items() if name.lower() not in TRANSPORT_HEADERS}
    json_length = int(kept.pop("inference-header-content-length", len(body)))
    try:
        said = normalised(json.loads(body[:json_length]))
    except ValueError:
        said = f"{len(body)} bytes"
    for parameters in [said.get("parameters", {})] if isinstance(said, dict) else []:
        parameters.pop("timeout", None)
    return {
        "link": first.split(" ")[1],
        "headers": normalised(kept),
        "json": said,
        "binary_bytes": len(body) - json_length,
    }


def scans() -> list[bytes]:
    with zipfile.ZipFile(DIGITS / "heldout" / "images.zip") as archive:
        return [archive.read(name) for name in sorted(archive.namelist())[:120]]


def v2_body(rows: list[bytes], preferences: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    binary = b"".join(len(row).to_bytes(4, "little") + row for row in rows)
    tensor = {
        "name": "image",
        "datatype": "BYTES",
        "shape": [len(rows)],
        "parameters": {"binary_data_size": len(binary)},
    }
    parameters = {key: int(value) if key in ("timeout", "priority") else value for key, value in preferences.items()}
    head = json.dumps({"id": "caller", "inputs": [tensor], "parameters": parameters}).encode()
    return head + binary, {"Inference-Header-Content-Length": str(len(head))}


class Recording:
    """One run: what was sent and what came back."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self._scans = scans()
        self.lines: list[dict[str, Any]] = []
        self.promised: list[str] = []

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path, body or None, headers or {})
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        finally:
            connection.close()

    def record(self, what: str, path: str, body: bytes, headers: dict[str, str], *, settle: bool = True) -> None:
        status, said = self.ask("POST", path, body, headers)
        self.lines.append({"request": what, "status": status, "answer": normalised(said)})
        parameters = said.get("parameters", said) if isinstance(said, dict) else {}
        if parameters.get("status") == "provisional":
            request_id = parameters["request_id"]
            if settle:
                self.settle(request_id)
            else:
                self.promised.append(request_id)

    def settle(self, request_id: str) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            status, said = self.ask("GET", f"/firstline/v1/answers/{request_id}")
            if said.get("status") != "provisional":
                self.lines.append({"request": "answer by id", "status": status, "answer": normalised(said)})
                return
            time.sleep(0.02)
        raise SystemExit("A provisional answer did not become final within 60 s.")

    def any_requests(self, count: int, *, settle: bool = True, waits: bool = True) -> None:
        """Sends seeded requests of every kind."""
        for number in range(count):
            choice = self._random.random()
            preferences: dict[str, str] = {}
            if self._random.random() < 0.35:
                preferences["route"] = self._random.choice(["auto", "edge", "cloud"])
            if self._random.random() < 0.25:
                preferences["privacy"] = self._random.choice(["any", "local_only"])
            if waits and self._random.random() < 0.2:
                preferences["wait"] = self._random.choice(["first", "final"])
            rows = [self._random.choice(self._scans) for _ in range(1 if choice < 0.6 else self._random.randint(2, 6))]
            label = f"{number} {len(rows)} {preferences}"
            if len(rows) == 1 and choice < 0.4:
                query = f"?{urlencode(preferences)}" if preferences else ""
                self.record(f"file {label}", f"/firstline/v1/models/digits/infer{query}", rows[0], {}, settle=settle)
            else:
                body, headers = v2_body(rows, preferences)
                self.record(f"v2 {label}", "/v2/models/digits/infer", body, headers, settle=settle)

    def refused_requests(self) -> None:
        """Sends requests that nothing answers."""
        body, headers = v2_body([self._scans[0]], {})
        bad_body, bad_headers = v2_body([b"no image"], {})
        refused: list[tuple[str, str, bytes, dict[str, str]]] = [
            ("unknown model", "/v2/models/unknown/infer", body, headers),
            ("unknown version", "/v2/models/digits/versions/9/infer", body, headers),
            ("no image", "/v2/models/digits/infer", bad_body, bad_headers),
            ("no JSON", "/v2/models/digits/infer", b"{", {}),
            ("no rows", "/v2/models/digits/infer", v2_body([], {})[0], v2_body([], {})[1]),
            ("bad route", "/firstline/v1/models/digits/infer?route=moon", self._scans[0], {}),
            ("no body", "/firstline/v1/models/digits/infer", b"", {}),
            ("no path", "/firstline/v1/nothing", b"", {}),
        ]
        for what, path, sent, heads in refused:
            self.record(what, path, sent, heads)


def start(module: str, folder: Path, config: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a tier and waits until it answers."""
    log = (folder / f"{module}.log").open("wb")
    command = [sys.executable, "-m", module, "run"]
    process = subprocess.Popen([*command, "--config", str(config)], stdout=subprocess.PIPE, stderr=log, cwd=folder)
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(rb"http://127\.0\.0\.1:(\d+)", line):
            return process, int(found[1])
    raise SystemExit(f"{module} did not start: {(folder / f'{module}.log').read_text()[-2000:]}")


def decision_records(state: Path) -> list[dict[str, Any]]:
    path = next(state.rglob("decisions.jsonl"))
    return [{"decision": normalised(json.loads(line))} for line in path.read_text().splitlines()]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"Waited 60 s for {what}.")
        time.sleep(0.02)


def run(seed: int) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for target in ("models", "device"):
            shutil.copytree(DIGITS / "bundle", folder / target / "digits")
        (folder / "device" / "digits" / "full.onnx").unlink()
        config = folder / "gateway.toml"
        config.write_text(GATEWAY)
        key = subprocess.run(
            [sys.executable, "-m", "firstline_gateway", "key", "create", "recorder", "--device", "--config", config],
            capture_output=True, check=True, cwd=folder,
        ).stdout  # fmt: skip
        (folder / "device.token").touch(0o600)
        (folder / "device.token").write_bytes(key)
        gateway, gateway_port = start("firstline_gateway", folder, config)
        proxy = Proxy(gateway_port)
        agent_config = folder / "edge-agent.toml"
        agent_config.write_text(AGENT.format(port=proxy.port))
        agent, port = start("firstline_edge", folder, agent_config)
        try:
            recording = Recording(port, seed)
            recording.any_requests(260)
            recording.refused_requests()
            traffic = [said for raw in proxy.requests if (said := link_request(raw)) is not None]
            proxy.cut()
            recording.any_requests(6, settle=False, waits=False)  # until the breaker knows
            offline = len(recording.lines)
            recording.any_requests(60, settle=False, waits=False)
            for line in recording.lines[offline:]:
                strip_attempts(line)
            proxy.up = True
            for request_id in recording.promised:
                recording.settle(request_id)
            for line in recording.lines[offline:]:
                strip_attempts(line)
            recording.any_requests(40)
            expected = sum(line["request"] != "answer by id" and line["status"] == 200 for line in recording.lines)
        finally:
            for process in (agent, gateway):
                process.terminate()
            for process in (agent, gateway):
                process.wait(30)
        decisions = decision_records(folder / "state")
        for each in decisions:
            strip_attempts(each)
        lines = [*recording.lines, *traffic, *sorted(decisions, key=json.dumps)]
        print(f"{len(recording.lines)} answers ({expected} given), {len(traffic)} link requests, "
              f"{len(decisions)} decision records", file=sys.stderr)  # fmt: skip
        return [json.dumps(line, sort_keys=True) for line in lines]


def strip_attempts(value: Any) -> None:
    """How often a link that is down was tried depends on time."""
    if isinstance(value, dict):
        value.pop("attempts", None)
        for each in value.values():
            strip_attempts(each)
    elif isinstance(value, list):
        for each in value:
            strip_attempts(each)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="JSON lines: written, or read with --check")
    parser.add_argument("--check", action="store_true", help="compare with the file; exit code 1 if anything differs")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    lines = run(arguments.seed)
    if not arguments.check:
        arguments.file.write_text("\n".join(lines) + "\n")
        return 0
    recorded = arguments.file.read_text().splitlines()
    difference = list(difflib.unified_diff(recorded, lines, "recorded", "now", n=0, lineterm=""))
    print("\n".join(difference) or "no difference")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
