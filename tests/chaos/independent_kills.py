"""`kill -9` of agent, gateway and broker, checked by a program of its own: what became of what was acknowledged?

    python -m chaos.independent_kills [--kills 100] [--links http,mqtt] [--seed 1]

This repeats the campaign of `kills.py` without its code and without the product's: processes from `subprocess`,
requests by `http.client`, MQTT by paho, and no look into any database. In half of the kills the device reaches its
gateway over HTTP, in the other half over MQTT. Each request has an image of its own. At the end the gateway is asked
about each image again, directly and in peace, which shows whether an answer is that of its request.

An answer that says `durable: true` is acknowledged. It is lost if the device does not end it, and swapped if its end
is not the full model's answer to its image. A live answer of the full model must be right too, and so must a correction
that is announced over MQTT.

Writes a sentence for each figure to standard error and all of them as JSON to standard output. With the default number
of kills and both links, the totals go to bench/results/independent-kills.json and docs/concepts/reliability.md. Exits
with 1 if an answer was lost or swapped, or if nothing was acknowledged.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho

from bench.figures import Figure, write
from bench.page import refill

Scores = Mapping[str, float]
"""Probabilities of the most likely labels."""

BUNDLE = Path(__file__).parents[2] / "models" / "digits" / "bundle"
DEVICE = "device-1"
_KILLS, _ALL_LINKS = 100, "http,mqtt"
TOLERANCE = 1e-4
_CLIENTS = 4
_PAUSE_S = 0.03
_LIFE_S = 0.8  # mean life of a process, once it answers
_IN_ITS_START = 0.15  # share of the kills that do not wait for its first answer
_START_TIMEOUT_S = 60.0
_PATIENCE_S = 60.0  # without any progress

_GATEWAY = """\
[api]
port = {gateway}
[models]
directory = "gateway-models"
[log]
level = "warning"
"""
_GATEWAY_MQTT = """\
[mqtt]
enabled = true
host = "127.0.0.1"
port = {broker}
"""
_AGENT = """\
[agent]
device_id = "{device}"
state_dir = "state"
[api]
port = {agent}
[models]
directories = ["device-models"]
[breaker]
open_ms = 50
open_max_ms = 500
[retries]
per_second = 1000
burst = 1000
[log]
level = "warning"
[[links]]
"""
_LINKS = {
    "http": 'kind = "http"\nurl = "http://127.0.0.1:{gateway}"\ntoken_file = "device.token"\n',
    "mqtt": 'kind = "mqtt"\nhost = "127.0.0.1"\nport = {broker}\n',
}
_BROKER = "listener {broker} 127.0.0.1\nallow_anonymous true\npersistence false\n"


@dataclass(slots=True)
class Report:
    """The figures of one link.

    Attributes:
        kills: by process.
        asked: requests sent.
        acknowledged: answers that said `durable: true`.
        final: acknowledged requests that ended with a correction.
        expired: acknowledged requests that ended without one, which the device said.
        lost: acknowledged requests without an end.
        swapped: acknowledged requests whose end is another request's answer.
        live: answers of the full model that came at once.
        live_swapped: of these, other requests' answers.
        announced: corrections heard over MQTT.
        announced_swapped: of these, other requests' answers.
        tracebacks: in the logs of all processes.
    """

    link: str
    kills: dict[str, int] = field(default_factory=dict)
    asked: int = 0
    acknowledged: int = 0
    final: int = 0
    expired: int = 0
    lost: int = 0
    swapped: int = 0
    live: int = 0
    live_swapped: int = 0
    announced: int = 0
    announced_swapped: int = 0
    tracebacks: int = 0
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether something was acknowledged, nothing was lost, and every answer is that of its request."""
        wrong = self.lost + self.swapped + self.live_swapped + self.announced_swapped + self.tracebacks
        return self.acknowledged > 0 and wrong == 0


@dataclass(frozen=True, slots=True)
class Found:
    """An answer as the device gives it under an id."""

    request_id: str
    status: str
    scores: Scores


def alike(one: Scores, other: Scores) -> bool:
    """Whether two answers agree within rounding about the labels that both list; only the likeliest may be listed."""
    both = one.keys() & other.keys()
    return len(both) == min(len(one), len(other)) and all(abs(one[label] - other[label]) <= TOLERANCE for label in both)


def count(
    report: Report, acknowledged: Mapping[str, int], found: Mapping[str, Found | None], right: Mapping[int, Scores]
) -> None:
    """Counts the ends of acknowledged requests.

    Args:
        report: receives the counts.
        acknowledged: number of the image, by request id.
        found: what the device says of each request id in the end; None for nothing.
        right: the full model's answer, by number of the image.
    """
    report.acknowledged = len(acknowledged)
    for request_id, number in acknowledged.items():
        end = found.get(request_id)
        if end is None or end.status not in ("final", "expired"):
            report.lost += 1
        elif end.status == "expired":
            report.expired += 1
        else:
            report.final += 1
            report.swapped += end.request_id != request_id or not alike(end.scores, right[number])


def count_wrong(answers: Iterable[tuple[int, Scores]], right: Mapping[int, Scores]) -> int:
    """Returns how many answers, each with the number of its image, are not the full model's."""
    return sum(not alike(scores, right[number]) for number, scores in answers)


def picture(number: int, seed: int) -> bytes:
    """Returns an 8 x 8 image in greyscale as PNG; each number has its own."""
    rng = random.Random(f"{seed} {number}")
    shade = rng.uniform(0.2, 1.0)
    rows = b"".join(b"\0" + bytes(int(shade * rng.randrange(256)) for _ in range(8)) for _ in range(8))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def call(port: int, method: str, path: str, body: bytes = b"", token: str = "") -> tuple[int, Any]:
    """Sends one request over a connection of its own; returns the status and the JSON document."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, body or None, headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read() or b"null")
    finally:
        connection.close()


NO_ANSWER = (OSError, http.client.HTTPException, ValueError)


def scores_of(document: Mapping[str, Any]) -> Scores:
    """Returns the probabilities of an answer in JSON."""
    return {entry["label"]: entry["probability"] for entry in document["top"]}


class Victim:
    """A program that is killed and started again, with the same files and port.

    Args:
        name: for the report and the log.
        command: starts it.
        port: on which it listens.
        folder: in which it runs.
    """

    def __init__(self, name: str, command: list[str], port: int, folder: Path) -> None:
        self.name = name
        self.port = port
        self.log = folder / f"{name}.log"
        self._command = command
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; `ready` waits until it listens."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=self._folder, stdout=log, stderr=log)

    def ready(self) -> None:
        """Waits until it accepts connections.

        Raises:
            RuntimeError: it ended instead, or takes too long.
        """
        ends_s = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < ends_s:
            if self._process is None or self._process.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.01)
        raise RuntimeError(f"{self.name} did not start: {self.log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Campaign:
    """One device and one gateway on one link, and the requests to them.

    Args:
        folder: empty.
        link: "http" or "mqtt".
        seed: of images and kills.
    """

    def __init__(self, folder: Path, link: str, seed: int) -> None:
        self._folder = folder
        self._link = link
        self._seed = seed
        self.report = Report(link)
        self._ports = {name: free_port() for name in ("agent", "gateway", "broker")}
        self._victims = self._prepare()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._next = 0
        self._acknowledged: dict[str, int] = {}
        self._numbers: dict[str, int] = {}  # of every answered request, by its id
        self._live: list[tuple[int, Scores]] = []
        self._heard: list[tuple[str, Scores]] = []
        self._failures: list[BaseException] = []

    def run(self, kills: int) -> Report:
        """Kills `kills` processes, and counts what became of the requests."""
        began_s = time.monotonic()
        try:
            for victim in self._victims:
                victim.start()
                victim.ready()
            listener = self._listen() if self._link == "mqtt" else None
            clients = [threading.Thread(target=self._ask) for _ in range(_CLIENTS)]
            reapers = [
                threading.Thread(target=self._reap, args=(victim, len(range(place, kills, len(self._victims)))))
                for place, victim in enumerate(self._victims)
            ]
            for thread in (*clients, *reapers):
                thread.start()
            for thread in reapers:
                thread.join()
            self._stopping.set()
            for thread in clients:
                thread.join()
            if self._failures:
                raise self._failures[0]
            self._settle()
            self._count()
            if listener is not None:
                listener.disconnect()
                listener.loop_stop()
        finally:
            self._stopping.set()
            for victim in self._victims:
                victim.kill()
        self.report.tracebacks = sum(
            victim.log.read_text(errors="replace").count("Traceback (most recent") for victim in self._victims
        )
        self.report.seconds = round(time.monotonic() - began_s, 1)
        return self.report

    def _prepare(self) -> list[Victim]:
        folder = self._folder
        shutil.copytree(BUNDLE, folder / "gateway-models" / "digits")
        shutil.copytree(BUNDLE, folder / "device-models" / "digits", ignore=shutil.ignore_patterns("full.onnx"))
        mqtt = self._link == "mqtt"
        names = {**self._ports, "device": DEVICE}
        (folder / "gateway.toml").write_text((_GATEWAY + (_GATEWAY_MQTT if mqtt else "")).format(**names))
        (folder / "agent.toml").write_text((_AGENT + _LINKS[self._link]).format(**names))
        self._make_key("device.token", DEVICE, "--device")
        self._make_key("app.token", "app")
        victims = [
            Victim(name, [sys.executable, "-m", module, "run", "--config", f"{name}.toml"], self._ports[name], folder)
            for name, module in (("gateway", "firstline_gateway"), ("agent", "firstline_edge"))
        ]
        if mqtt:
            (folder / "broker.conf").write_text(_BROKER.format(**names))
            command = [mosquitto(), "-c", str(folder / "broker.conf")]
            victims.insert(0, Victim("broker", command, self._ports["broker"], folder))
        return victims

    def _make_key(self, file: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "firstline_gateway", "key", "create", *arguments, "--config", "gateway.toml"]
        completed = subprocess.run(command, cwd=self._folder, capture_output=True, check=True)
        path = self._folder / file
        path.touch(mode=0o600)
        path.write_bytes(completed.stdout)

    def _reap(self, victim: Victim, kills: int) -> None:
        rng = random.Random(f"{self._seed} {self._link} {victim.name}")
        try:
            for _ in range(kills):
                if rng.random() < _IN_ITS_START:
                    time.sleep(rng.uniform(0.0, 0.5))
                else:
                    victim.ready()
                    time.sleep(rng.expovariate(1 / _LIFE_S))
                victim.kill()
                victim.start()
                with self._lock:
                    self.report.kills[victim.name] = self.report.kills.get(victim.name, 0) + 1
            victim.ready()
        except Exception as error:  # noqa: BLE001 (raised by `run`)
            self._failures.append(error)

    def _ask(self) -> None:
        """Sends requests whose corrections come later, and now and then one that waits for the full model."""
        path = "/firstline/v1/models/digits/infer?route=cloud&timeout=3000000&wait="
        while not self._stopping.is_set():
            time.sleep(_PAUSE_S)
            with self._lock:
                self._next += 1
                number = self._next
            wait = "final" if number % 4 == 0 else "first"
            try:
                status, answer = call(self._ports["agent"], "POST", path + wait, picture(number, self._seed))
            except NO_ANSWER:  # the process died: nothing was acknowledged
                continue
            if status != 200:
                continue
            with self._lock:
                self._numbers[answer["request_id"]] = number
                if answer["durable"]:
                    self._acknowledged[answer["request_id"]] = number
                elif answer["tier"] == "cloud":
                    self._live.append((number, scores_of(answer)))

    def _listen(self) -> paho.Client:
        """An application near the device, which hears the corrections."""
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="application", protocol=paho.MQTTv5)
        client.reconnect_delay_set(1, 1)
        client.on_connect = lambda connected, *_: connected.subscribe(f"firstline/v1/{DEVICE}/results", 1)
        client.on_message = self._hear
        client.connect("127.0.0.1", self._ports["broker"])
        client.loop_start()
        return client

    def _hear(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        document = json.loads(message.payload)
        probabilities = document["outputs"][0]["data"]
        scores = {str(index): float(value) for index, value in enumerate(probabilities)}
        with self._lock:
            self._heard.append((document["parameters"]["request_id"], scores))

    def _settle(self) -> None:
        """Waits until the device has ended every promise, or nothing moves any longer."""
        least, moved_s = sys.maxsize, time.monotonic()
        while time.monotonic() < moved_s + _PATIENCE_S:
            with contextlib.suppress(*NO_ANSWER):
                waiting = call(self._ports["agent"], "GET", "/firstline/v1/status")[1]["outbox"]["items"]
                if waiting == 0:
                    return
                if waiting < least:
                    least, moved_s = waiting, time.monotonic()
            time.sleep(0.1)

    def _count(self) -> None:
        token = (self._folder / "app.token").read_text().strip()
        found: dict[str, Found | None] = {}
        for request_id in self._acknowledged:
            status, answer = call(self._ports["agent"], "GET", f"/firstline/v1/answers/{request_id}")
            found[request_id] = (
                Found(answer["request_id"], answer["status"], scores_of(answer)) if status == 200 else None
            )
        right: dict[int, Scores] = {}
        for number in {*self._numbers.values()}:
            path = "/firstline/v1/models/digits/infer"
            status, answer = call(self._ports["gateway"], "POST", path, picture(number, self._seed), token)
            if status != 200:
                raise RuntimeError(f"The gateway does not answer: {answer}")
            right[number] = scores_of(answer)
        report = self.report
        count(report, self._acknowledged, found, right)
        report.asked = self._next
        report.live, report.live_swapped = len(self._live), count_wrong(self._live, right)
        labels = json.loads((self._folder / "device-models" / "digits" / "manifest.json").read_text())["task"]["labels"]
        final = {request_id for request_id, end in found.items() if end is not None and end.status == "final"}
        announced = [
            (self._numbers[request_id], {labels[int(index)]: value for index, value in scores.items()})
            for request_id, scores in self._heard
            if request_id in final
        ]
        report.announced, report.announced_swapped = len(announced), count_wrong(announced, right)


def free_port() -> int:
    """Returns a loopback port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def mosquitto() -> str:
    """Returns the broker's program.

    Raises:
        SystemExit: it is not installed.
    """
    found = shutil.which("mosquitto", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
    if found is None:
        raise SystemExit("mosquitto is not installed: `apt-get install mosquitto`, or use --links http")
    return found


def figures(total: Mapping[str, int]) -> list[Figure]:
    """Returns the totals of all links as figures of the page."""
    return [
        Figure("kill -9 of agents, gateways and brokers", total["kills"], ""),
        Figure("requests acknowledged (durable: true)", total["acknowledged"], ""),
        Figure("acknowledged and lost", total["lost"], "", "0", total["lost"] == 0),
        Figure(
            "acknowledged and ended with another request's answer", total["swapped"], "", "0", total["swapped"] == 0
        ),
        Figure("acknowledged and expired", total["expired"], ""),
    ]


def main() -> int:
    """Returns 0 if every acknowledged request ended with its own answer, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=_KILLS, help="of all processes together (default: %(default)s)")
    parser.add_argument(
        "--links", default=_ALL_LINKS, help="kinds of links, one after the other (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of images and kills (default: %(default)s)")
    options = parser.parse_args()
    links = options.links.split(",")
    reports = []
    for place, link in enumerate(links):
        kills = len(range(place, options.kills, len(links)))
        with tempfile.TemporaryDirectory(prefix="firstline-independent-", ignore_cleanup_errors=True) as folder:
            report = Campaign(Path(folder), link, options.seed).run(kills)
        reports.append(report)
        for name, value in asdict(report).items():
            if name != "link":
                print(f"{link}: {name.replace('_', ' ')}: {value}", file=sys.stderr)
    total = {
        name: sum(getattr(report, name) for report in reports)
        for name in ("acknowledged", "lost", "swapped", "expired", "live_swapped", "announced_swapped")
    }
    total["kills"] = sum(sum(report.kills.values()) for report in reports)
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in total.items()), file=sys.stderr)
    print(json.dumps({"seed": options.seed, "total": total, "links": [asdict(report) for report in reports]}))
    if (options.kills, options.links) == (_KILLS, _ALL_LINKS):
        write("independent-kills", figures(total))
        refill("independent-kills")
    return 0 if all(report.holds for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
