"""The commands: what they print, and the exit codes that their help promises."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pytest
from support.agent import DIGITS
from support.broker import free_port
from support.http_answers import answering

from firstline_core.bundle.store import open_bundle
from firstline_core.planning.split import Splits, encode
from firstline_core.routing.timing import TimingReport
from firstline_core.types import Reason
from firstline_edge.__main__ import main
from firstline_edge.cli import doctor, doctor_device
from firstline_edge.cli.explain import describe
from firstline_edge.cli.findings import Severity
from firstline_edge.cli.parser import parse
from firstline_edge.cli.status import describe as describe_status
from firstline_edge.settings.load import load
from firstline_edge.state import StateDirectory

Findings: TypeAlias = Callable[[], tuple[int, dict[str, dict[str, str]]]]
LINE: dict[str, Any] = {
    "at": 1_800_000_000.0,
    "event": "answered",
    "model": "digits",
    "version": "1",
    "ms": 3.25,
    "threshold": 0.97,
    "request_id": "r",
    "status": "provisional",
    "certified": False,
    "durable": True,
    "tier": "edge",
    "reason": "link_down",
    "confidence": 0.5,
    "model_digest": "a" * 64,
    "attempts": [{"tier": "edge", "outcome": "ok", "ms": 0.5}, {"tier": "cloud", "outcome": "link_down", "ms": 2.5}],
    "rows": [],
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "edge.toml"
    file.write_text(
        f'[agent]\nstate_dir = "state"\n[models]\ndirectories = ["{DIGITS}"]\n[api]\nport = {free_port()}\n'
    )
    return file


@pytest.fixture(autouse=True)
def _restore_signals() -> Iterator[None]:
    """Restores the handlers that `run` sets, because this process continues after it."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


Run: TypeAlias = Callable[..., Ended]


@pytest.fixture
def run(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command with the configuration."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["edge-agent", *arguments, "--config", str(config)])
        code = main()
        return Ended(code, *capsys.readouterr())

    return run


def test_explain_describes_a_request() -> None:
    assert describe(LINE) == [
        "2027-01-15T08:00:00.000Z  digits 1: answered in 3.25 ms by this device's model, model aaaaaaaaaaaa.",
        "  this device's model answered after 0.5 ms",
        "  the gateway failed (link_down) after 2.5 ms",
        "  The full model was to answer, but no gateway was reachable or it was busy; this device's answer stood in.",
        "  The answer is provisional; a correction will come under the same id. The promise is on the disk.",
    ]
    (corrected,) = describe(LINE | {"event": "corrected", "status": "final", "tier": "cloud"})
    assert corrected.endswith("Corrected by the gateway, model aaaaaaaaaaaa. The answer is final.")
    for changed, result in ((True, "otherwise"), (False, "the same")):
        (corrected,) = describe(LINE | {"event": "corrected", "status": "final", "tier": "cloud", "changed": changed})
        assert corrected.endswith(
            f"Corrected by the gateway, model aaaaaaaaaaaa, which answers {result}. The answer is final."
        )
    (expired,) = describe(LINE | {"event": "corrected", "status": "expired"})
    assert "did not come in time" in expired
    (strange,) = describe({"request_id": "r"})
    assert strange.startswith('{"request_id": "r"}') and "did not write this line" in strange
    (expired,) = describe(LINE | {"event": "corrected", "status": "expired", "reason": "cloud_error"})
    assert "did not come in time" in expired
    (refused,) = describe(LINE | {"event": "corrected", "status": "expired", "reason": "cloud_error", "cause": "Why."})
    assert refused.endswith("the first answer stands. Why: Why.")


def test_explain_states_why_the_full_model_was_to_answer() -> None:
    (*_, policy, _) = describe(LINE | {"policy_reasons": ["uncertain"]})
    assert policy == (
        "  The policy had decided: This device's model was not sure enough (score 0.5000, accepted from 0.9700), so "
        "the full model was to answer."
    )
    row = {"tier": "edge", "status": "final", "confidence": 0.5}
    rows = [row | {"reason": "confident"}, row | {"reason": "link_down"}]
    lines = describe(LINE | {"rows": rows, "policy_reasons": ["confident", "uncertain"]})
    assert lines[-3:-1] == [
        "  row 0: edge, confident, score 0.5000, final",
        "  row 1: edge, link_down (the policy had decided: uncertain), score 0.5000, final",
    ]


def test_explain_names_a_refused_token() -> None:
    tried = [{"tier": "cloud", "outcome": "unauthorized", "ms": 2.5}]
    lines = describe(LINE | {"attempts": tried, "cause": "The gateway refuses this device: The token is unknown."})
    assert lines[1] == "  the gateway refused this device's token (unauthorized) after 2.5 ms"
    assert "refuses this device's token" in lines[2] and "links.token_file" in lines[2]
    assert lines[2].endswith("Why: The gateway refuses this device: The token is unknown.")


def test_explain_names_wait_first() -> None:
    lines = describe(LINE | {"reason": "requested", "wait": "first"})
    assert "asked not to wait for it (`wait=first`)" in lines[3]
    assert "`route` or `wait`" in describe(LINE | {"reason": "requested"})[3]


def test_explain_of_a_full_models_answer_names_no_certificate() -> None:
    final = describe(LINE | {"status": "final", "durable": False, "tier": "cloud", "certified": True})
    assert final[-1] == "  The answer is final. It is the full model's own."


@pytest.mark.parametrize("reason", [reason.value for reason in Reason])
def test_every_reason_has_a_sentence(reason: str) -> None:
    sentence = describe(LINE | {"reason": reason})[3].strip()
    assert sentence.endswith(".") and "{" not in sentence
    if reason == "uncertain":
        assert "(score 0.5000, accepted from 0.9700)" in sentence


def test_explain_states_the_certificate_of_an_edge_answer() -> None:
    accepted = LINE | {"reason": "confident", "status": "final", "durable": False, "confidence": 0.99}
    proved = accepted | {"certified": True, "certificate": "at most 5 % disagree", "uncertified": ""}
    assert describe(proved)[-1] == "  The answer is final. It is certified: at most 5 % disagree."
    none = accepted | {"certificate": None, "uncertified": "its bundle carries no certificate for it"}
    assert describe(none)[-1] == (
        "  The answer is final. It is not certified: its bundle carries no certificate for it."
    )
    full = proved | {"reason": "uncertain", "tier": "cloud"}
    assert "the full model's own" in describe(full)[-1]


def test_explain_plan_lists_unknown_figures(run: Run) -> None:
    unknown = run("plan", "explain", "digits")
    assert unknown.code == 0
    assert "open      No profile" in unknown.out and "open      No agent of this configuration answers" in unknown.out
    with_link = run("plan", "explain", "digits", "--bandwidth", "8", "--round-trip", "4")
    assert with_link.code == 0
    assert "agent" not in with_link.out  # nothing of it is needed


def test_explain_plan_uses_measured_splits(tmp_path: Path, run: Run) -> None:
    digest = open_bundle(DIGITS).manifest.full_digest
    file = tmp_path / "split.json"
    file.write_bytes(encode(Splits("digits", 1, "full", digest, "onnx", 1, 1.0, 9.0, 100.0, 5, 0)))
    arguments = ["plan", "explain", "--splits", str(file), "--round-trip", "4"]
    explained = run(*arguments, "--bandwidth", "8", "-o", "json")
    assert explained.code == 0
    [found] = json.loads(explained.out)
    assert (found["full"]["way"]["kind"], found["full"]["latency_ms"]) == ("device", 10)
    assert found["full"]["by_bandwidth"][0]["to_bytes_per_s"] is None
    file.write_text("{}")
    refused = run(*arguments)
    assert refused.code == 1
    assert "does not say how a model splits" in refused.err


def test_an_empty_name_rolls_nothing_back(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["update", "rollback", ""])
    assert "the name is empty" in capsys.readouterr().err


def test_a_closed_stdin_holds_no_token(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    ended = run("join", "https://gateway.example", "--token-file", "-")
    assert ended.code == 2 and "not a join token" in ended.err


def test_status_without_an_agent(run: Run) -> None:
    ended = run("status")
    assert ended.code == 1
    assert "start it with `edge-agent run`" in ended.err


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("update", "rollback", "digits"), 2),
        (("update", "rollback", "--configuration"), 2),
        (("status",), 1),
    ],
)
def test_an_address_that_is_not_a_url(command: tuple[str, ...], code: int, config: Path, run: Run) -> None:
    with contextlib.closing(StateDirectory(config.parent / "state")) as state:  # as if an agent ran
        state.publish_url("http://a..b:1")
        ended = run(*command)
    assert ended.code == code
    assert "The URL 'http://a..b:1' cannot be used" in ended.err


def test_run_refuses_a_provider_that_is_absent(config: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("FIRSTLINE_EDGE_MODELS__PROVIDERS", '["CUDAExecutionProvider"]')
    ended = run("run")
    assert ended.code == 2
    assert "models.providers names CUDAExecutionProvider, but this onnxruntime has: " in ended.err
    assert not (config.parent / "state" / "url").exists()


@pytest.mark.parametrize(
    "body",
    [
        *(b"<html>hello</html>", b"[]", b'{"ready": true}'),
        b'{"ready": true, "device_id": "other", "version": "1", "uptime_s": "long"}',
    ],
)
def test_status_of_another_server_fails(body: bytes, run: Run) -> None:
    with answering(lambda *_: (200, {}, body)) as url:
        ended = run("status", "--url", url)
    assert ended.code == 1
    assert "is not an edge agent" in ended.err


def test_status_as_text() -> None:
    timing = TimingReport(1000, 2500, 9.0, 30.0, 48.0, 18.0, 24.0, 12.0, 24.0)
    model: dict[str, Any] = {"name": "m", "version": "1", "edge": "e", "provider": "CPU", "row_ms": None}
    model |= {"threshold": 0.9, "problem": None, "passed_over": ["better: no such provider."]}
    other = model | {"problem": "Another bundle."}
    failed = model | {"edge": None, "problem": "No runtime."}
    proved = model | {"passed_over": [], "certificate": {"promise": "at most 5 %"}, "uncertified": None}
    void = model | {"passed_over": [], "certificate": None, "uncertified": "its certificate is void"}
    status = {
        "device_id": "d", "version": "0", "ready": True, "uptime_s": 3, "models": [model, other, failed, proved, void],
        "problems": [{"path": "/x", "message": "Broken."}],
        "links": {
            "http": {"state": "down", "address": "http://g", "problem": "Refused."},
            "mqtt": {"state": "refused", "address": "b:1883", "problem": "Unknown token."},
            "mqtt-2": {"state": "unknown", "address": "c:1883", "problem": ""},
            "http-2": {"state": "up", "address": "http://i", "problem": "", "timing": msgspec.to_builtins(timing)},
        },
        "outbox": {"items": 2, "size_bytes": 10}, "cache": {"entries": 1, "size_bytes": 5},
    }  # fmt: skip
    assert describe_status("http://h", status) == [
        "d 0 at http://h, ready, up 3 s",
        "model   m 1: e on CPU, not measured, accepted from a score of 0.9",
        "        passed over better: no such provider.",
        "model   m 1: e on CPU, not measured, accepted from a score of 0.9",
        "problem m 1: Another bundle.",
        "        passed over better: no such provider.",
        "model   m 1: all goes to the cloud. No runtime.",
        "model   m 1: e on CPU, not measured, accepted from a score of 0.9",
        "        certified: at most 5 %",
        "model   m 1: e on CPU, not measured, accepted from a score of 0.9",
        "        not certified: its certificate is void",
        "problem /x: Broken.",
        "link    http http://g: down. Refused.",
        "link    mqtt b:1883: refused. Unknown token.",
        "link    mqtt-2 c:1883: unknown",
        "link    http-2 http://i: up, 30 ms (95 %: 48), 12 of them in the gateway, for a request of 1,000 bytes, "
        "sent after 2,500 bytes of other requests",
        "outbox  2 corrections to come, 10 bytes",
        "cache   1 result in memory, 5 bytes",
    ]


@pytest.mark.parametrize("command", ["explain r", "purge --yes", "audit list", "status", "update rollback digits"])
def test_an_unused_state_directory_is_named(command: str, config: Path, run: Run) -> None:
    ended = run(*command.split())
    assert ended.code == 1
    state_dir = config.parent / "state"
    assert str(state_dir) in ended.err and "settings with --config" in ended.err
    assert not state_dir.exists()


def test_an_unknown_request_is_named(config: Path, run: Run) -> None:
    (config.parent / "state").mkdir()
    ended = run("explain", "r")
    assert ended.code == 1
    assert "has no request r; it is older than the log goes back" in ended.err


@pytest.mark.parametrize("command", [["status"], ["explain", "r"], ["doctor"]])
def test_a_bad_configuration_is_exit_code_2(command: list[str], config: Path, run: Run) -> None:
    config.write_text("[api]\nprot = 1\n")
    ended = run(*command)
    assert ended.code == 2
    assert "edge.toml:2" in ended.err


class TestDoctor:
    @pytest.fixture
    def findings(self, run: Run) -> Findings:
        def findings() -> tuple[int, dict[str, dict[str, str]]]:
            ended = run("doctor", "-o", "json")
            return ended.code, {found["subject"]: found for found in json.loads(ended.out)}

        return findings

    def test_a_healthy_device(self, findings: Findings) -> None:
        code, found = findings()
        assert code == 0
        assert next(iter(found)) == "processor"
        assert found["model digits 1 edge-onnx"]["severity"] == "ok"
        assert "ms a row (p50)" in found["model digits 1 edge-onnx"]["detail"]
        assert "certified: at most 1.5 % of edge answers disagree" in found["model digits 1 edge-onnx"]["detail"]
        assert found["fsync"]["detail"] and found["clock"]["severity"] == "ok"
        assert found["links"]["severity"] == "warning"

    def test_missing_parts_come_with_advice(self, config: Path, tmp_path: Path, findings: Findings) -> None:
        http, mqtt = free_port(), free_port()
        token = tmp_path / "the token"
        token.write_text("secret\n")
        token.chmod(0o644)
        with config.open("a") as file:
            file.write(
                f'[[links]]\nkind = "http"\nurl = "http://127.0.0.1:{http}"\ntoken_file = "the token"\n'
                f'[[links]]\nkind = "mqtt"\nhost = "127.0.0.1"\nport = {mqtt}\n'
            )
        config.write_text(config.read_text().replace(str(DIGITS), str(tmp_path / "nowhere")))
        code, found = findings()
        assert code == 1
        assert found["models"]["severity"] == "error"
        assert found[f"links[0] http 127.0.0.1:{http}"]["advice"].startswith("start the gateway")
        assert found[f"links[1] mqtt 127.0.0.1:{mqtt}"]["advice"].startswith("start mosquitto")
        assert found["links[0].token_file"]["advice"] == f"chmod 600 '{token}'"

    def test_a_second_bundle_of_a_version_is_an_error(self, config: Path, tmp_path: Path, findings: Findings) -> None:
        for folder in ("a", "b"):
            shutil.copytree(DIGITS, tmp_path / "models" / folder)
        config.write_text(config.read_text().replace(str(DIGITS), str(tmp_path / "models")))
        code, found = findings()
        assert (code, found["model digits 1 edge-onnx"]["severity"]) == (1, "ok")
        assert "remove one of them" in found["bundle b"]["detail"]

    @pytest.mark.parametrize(
        ("mode", "severity"), [(0o600, Severity.OK), (0o640, Severity.WARNING), (0o604, Severity.ERROR)]
    )
    def test_a_secret_that_every_user_may_read_is_an_error(self, config: Path, mode: int, severity: Severity) -> None:
        token = config.parent / "tokens"
        token.write_text("camera:0123456789abcdef\n")
        token.chmod(mode)
        (found,) = doctor_device.secret_findings(load(config, overrides={"api.token_file": str(token)}))
        assert (found.subject, found.severity) == ("api.token_file", severity)

    def test_settings_that_run_would_refuse_are_missing(self, config: Path, tmp_path: Path, findings: Findings) -> None:
        tokens = tmp_path / "tokens"
        tokens.touch(mode=0o600)
        bundle = tmp_path / "bundle"
        shutil.copytree(DIGITS, bundle)
        damaged = next(bundle.glob("*.onnx"))
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
        config.write_text(config.read_text().replace(str(DIGITS), str(bundle)) + 'token_file = "tokens"\n')
        code, found = findings()
        assert code == 1
        assert found["api.token_file"]["severity"] == "error"
        assert "holds no token" in found["api.token_file"]["detail"]
        assert found["bundle bundle"]["advice"] == f"copy the bundle again, whole: rsync -a --delete BUNDLE/ {bundle}/"

    @pytest.mark.parametrize(
        ("number", "advice"),
        [(errno.ENOSPC, "free space"), (errno.EROFS, "remount,rw"), (errno.EACCES, "sudo install -d")],
    )
    def test_a_disk_error_has_advice(
        self, number: int, advice: str, config: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_folder: Path) -> float:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(doctor_device, "_fsync_ms", refuse)
        (found,) = doctor_device.state_findings(load(config))
        assert (found.subject, found.severity) == ("state directory", Severity.ERROR) and advice in found.advice

    def test_an_unusable_state_directory_is_reported(self, run: Run) -> None:
        ended = run("doctor", "--set", f"agent.state_dir=/{'x' * 300}")
        assert ended.code == 1
        assert "state directory: /xxx" in ended.out and "cannot be written: File name too long" in ended.out

    def test_stored_bytes_reduce_the_needed_space(self, config: Path) -> None:
        outbox, settings = config.parent / "state" / "outbox", load(config)
        outbox.mkdir(parents=True, mode=0o700)
        assert "outbox and cache may grow by 576" in str(list(doctor_device.state_findings(settings)))
        with (outbox / "outbox.db").open("wb") as file:
            file.truncate(100 << 20)
        assert "outbox and cache may grow by 476" in str(list(doctor_device.state_findings(settings)))

    def test_unreadable_audits_are_reported(self, config: Path, findings: Findings) -> None:
        path = config.parent / "state" / "audits" / "certificates.json"
        path.mkdir(parents=True)
        _, found = findings()
        assert found["audits"]["detail"].startswith(f"{path} cannot be read: ")
        assert "the agent's user" in found["audits"]["advice"]

    def test_a_damaged_outbox_is_reported(self, config: Path, findings: Findings) -> None:
        aside = config.parent / "state" / "outbox" / "outbox.db.damaged"
        aside.parent.mkdir(parents=True, mode=0o700)
        aside.touch()
        _, found = findings()
        assert str(aside) in found["outbox"]["detail"]

    def test_a_32_bit_system_is_reported_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor.struct, "calcsize", lambda _: 4)
        monkeypatch.setattr(doctor.platform, "machine", lambda: "armv7l")
        first = next(doctor.machine_findings())
        assert (first.subject, first.severity) == ("processor", Severity.WARNING)
        assert "armv7l, a 32-bit system" in first.detail and "64-bit" in first.advice

    def test_doctor_runs_without_any_package(self) -> None:
        """The very case that doctor is for: numpy cannot be imported."""
        blocked = textwrap.dedent("""
            import sys
            for name in ("numpy", "PIL", "msgspec", "httpx", "httptools", "structlog", "orjson"):
                sys.modules[name] = None
            sys.argv = ["edge-agent", "doctor"]
            from firstline_edge.__main__ import main
            sys.exit(main())
        """)
        done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.startswith("ok       processor")
        assert "error    numpy: cannot be imported" in done.stdout
        assert "pip install 'firstline[edge-core]'" in done.stdout

    def test_an_absent_provider_is_missing_despite_a_tflite_variant(
        self, monkeypatch: pytest.MonkeyPatch, findings: Findings
    ) -> None:
        monkeypatch.setenv("FIRSTLINE_EDGE_MODELS__PROVIDERS", '["CUDAExecutionProvider"]')
        code, found = findings()
        finding = found["execution providers"]
        assert (code, finding["severity"]) == (1, "error")
        assert "names CUDAExecutionProvider" in finding["detail"] and "CPUExecutionProvider" in finding["detail"]
        assert "firstline[edge-core]" in finding["advice"]


def test_the_end_waits_for_no_call_in_a_thread() -> None:
    """Such as the load of a model that an update brought."""
    script = """
        import asyncio
        import threading

        from firstline_edge.cli.run import run_to_end

        async def agent() -> None:
            began, ended = threading.Event(), threading.Event()
            asyncio.get_running_loop().run_in_executor(None, lambda: (began.set(), ended.wait()))
            await asyncio.to_thread(began.wait)
            print("stopped")

        run_to_end(agent())
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")
