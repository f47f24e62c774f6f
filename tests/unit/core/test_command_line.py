"""The parsers of both tiers: examples, mistyped words, and help without large packages."""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from firstline_core.command_line import Parser, run_with_output
from firstline_edge.cli import parser as edge
from firstline_gateway import __main__ as gateway

_HEAVY = ("numpy", "msgspec", "httpx", "onnxruntime", "tuf", "cryptography", "sqlalchemy", "uvicorn", "structlog")


def _leaves(parser: Parser) -> Iterator[Parser]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for each in groups[0].choices.values() if groups else ():
        yield from _leaves(each)
    if not groups:
        yield parser


PROGRAMS = {"edge-agent": edge.parser, "firstline-gateway": gateway.parser}
LEAVES = {leaf.prog: leaf for make in PROGRAMS.values() for leaf in _leaves(make())}


@pytest.mark.parametrize("prog", LEAVES)
def test_the_example_of_a_command_is_taken_and_it_answers_in_json(prog: str) -> None:
    command = shlex.split(LEAVES[prog].example.partition(" > ")[0])
    assert command[: len(prog.split())] == prog.split()
    PROGRAMS[command[0]]().parse_args(command[1:])
    assert LEAVES[prog].example in LEAVES[prog].format_help()
    assert "json}" in LEAVES[prog].format_usage()


@pytest.mark.parametrize(
    ("program", "arguments", "sentence"),
    [
        ("edge-agent", ["status", "--qqq=3"], "unknown option --qqq; `edge-agent status -h` lists them."),
        ("edge-agent", ["qqq"], "use one of init, run, status, explain"),
        ("edge-agent", ["update", "rollback"], "MODEL or --configuration is missing; "),
        ("firstline-gateway", ["key", "creat", "ops"], "invalid choice: 'creat'; did you mean 'create'?"),
    ],
)
def test_a_mistyped_word_is_recognised(
    program: str, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[program]().parse_args(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]


def test_the_scopes_of_keys_are_those_of_principals() -> None:
    from firstline_gateway.commands.keys import _SCOPES
    from firstline_gateway.identity.principals import SCOPES

    assert set(_SCOPES) == set(SCOPES)


@pytest.mark.parametrize("module", ["firstline_edge.cli.parser", "firstline_gateway.__main__"])
def test_help_loads_no_large_package(module: str) -> None:
    """In a process of its own, because this one has loaded them."""
    script = f"import sys, {module} as m; m.parser().format_help(); print([n for n in {_HEAVY} if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


def test_help_is_the_same_if_python_removes_docstrings() -> None:
    script = """
import sys
from firstline.__main__ import main
for line in ([], ["certify"], ["rollout", "start"]):
    sys.argv = ["firstline", *line, "--help"]
    main()
"""

    def help_of(*options: str) -> str:
        return subprocess.run(
            [sys.executable, *options, "-c", script], capture_output=True, text=True, check=True
        ).stdout

    plain = help_of()
    assert help_of("-OO") == plain
    assert all(text in plain for text in ("Workflow", "--epsilon", "rollout start"))


def test_a_command_runs_without_docstrings_and_sources() -> None:
    script = """
import inspect, sys

def no_source(_: object) -> str:
    raise OSError("could not get source code")

inspect.getsource = no_source
from firstline.__main__ import main
sys.argv = ["firstline", "certify", "--help"]
sys.exit(main())
"""
    found = subprocess.run([sys.executable, "-OO", "-c", script], capture_output=True, text=True, check=False)
    assert found.returncode == 0 and "--epsilon" in found.stdout, found.stderr


COMMANDS = {
    "edge-agent init --config edge.toml": "firstline_edge",
    "firstline-gateway init --config gateway.toml": "firstline_gateway",
    "firstline context list": "firstline",
}


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize(("redirection", "code"), [(">/dev/full", 1), (">&-", 0), ("| head -c 0", 0)])
def test_output_that_cannot_be_written_is_no_traceback(tmp_path: Path, line: str, redirection: str, code: int) -> None:
    command = f"{shlex.quote(sys.executable)} -m {COMMANDS[line]} {line.partition(' ')[2]} {redirection}"
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}
    found = subprocess.run(
        ["/bin/sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == code
    assert "Traceback" not in found.stderr and "Exception ignored" not in found.stderr
    if code:
        assert "No space left on device. Free some space" in found.stderr


@pytest.mark.parametrize(
    "line",
    [
        "firstline_edge doctor --config edge.toml",
        "firstline_edge purge --config edge.toml",
        "firstline_gateway ca init --config gateway.toml",
        "firstline_gateway check --config gateway.toml",
        "firstline_gateway key list --config gateway.toml",
    ],
)
def test_commands_fail_if_disk_refuses_output(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, *arguments = line.split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "edge.toml").write_text('[agent]\nstate_dir = "state"\n')
    (tmp_path / "gateway.toml").write_text('[store]\nurl = "sqlite:///gateway.db"\n[models]\ndirectory = "."\n')
    monkeypatch.setattr(sys, "argv", [package, *arguments])
    with Path("/dev/full").open("w") as full, (tmp_path / "said").open("w+") as stderr:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "stderr", stderr)
        try:
            code = import_module(f"{package}.__main__").main()
        except SystemExit as ended:
            code = ended.code
    assert (code, "No space left on device. Free some space" in (tmp_path / "said").read_text()) == (1, True)


@pytest.mark.parametrize(
    "line",
    [
        "firstline_edge run --config missing",
        "firstline_gateway run --config missing",
        "firstline bundle verify missing",
    ],
)
def test_exit_code_stays_if_the_disk_refuses_the_sentence(tmp_path: Path, line: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", *line.split()]
        assert subprocess.run(command, cwd=tmp_path, stderr=full, check=False).returncode == 2


def test_log_lines_to_closed_stderr_reach_no_other_file() -> None:
    script = """
import os, sys
from firstline_core.command_line import run_with_output
from firstline_core.telemetry import logs

def run():
    logs.configure()
    logs.logger("firstline_edge").error("lost")
    return os.open(os.devnull, os.O_RDONLY)

sys.exit(run_with_output(run, print))
"""
    command = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(script)} 2>&-"
    assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode > 2  # the file that was opened


def test_ready_line_that_a_full_disk_refuses_ends_no_server() -> None:
    script = (
        "import sys; from firstline_core.command_line import announce, run_with_output; "
        "sys.exit(run_with_output(lambda: announce('listening') or 3, print))"
    )
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([sys.executable, "-c", script], stdout=full, check=False).returncode == 3


def test_output_that_nothing_reads_ends_a_command_without_an_error() -> None:
    """A thousand lines are more than the buffers of stdout hold."""
    script = (
        "import sys; from firstline_core.command_line import run_with_output; "
        "print('started', file=sys.stderr, flush=True); sys.stdin.read(); "
        "sys.exit(run_with_output(lambda: print(('x' * 1000 + chr(10)) * 1000) or 3, print))"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.close()
        running.stdin.close()
        assert running.stderr.read() == b"started\n"
        assert running.wait() == 0


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device")])
def test_the_failure_of_another_file_is_not_taken_for_that_of_stdout(error: OSError) -> None:
    def run() -> int:
        print("some output")
        raise error

    with pytest.raises(OSError) as raised:
        run_with_output(run, pytest.fail)
    assert raised.value is error


@pytest.mark.parametrize("encoding", ["ascii", "iso8859-7", "utf-8"])
def test_json_is_valid_whatever_the_encoding_of_stdout(tmp_path: Path, encoding: str) -> None:
    empty = tmp_path / "\u00e9 \u4e2d \U0001f600.png"
    empty.touch()
    line = ["infer", "digits", str(empty), "--url", "http://127.0.0.1:9", "-o", "json"]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "firstline", *line]
    found = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert json.loads(found.stdout)["file"] == str(empty), found.stderr


def test_an_argument_that_is_not_text_is_named(tmp_path: Path) -> None:
    environment = os.environ | {"FIRSTLINE_GATEWAY": "http://127.0.0.1:9", "FIRSTLINE_TOKEN": "x"}
    found = subprocess.run(
        [sys.executable, "-m", "firstline", "rollout", "get", b"r\xff"],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert found.returncode == 2
    assert found.stderr.startswith(b"'r\\udcff' is not text in UTF-8")


@pytest.mark.parametrize("package", ["firstline_edge", "firstline_gateway"])
def test_a_first_configuration_may_have_any_name_that_the_disk_takes(tmp_path: Path, package: str) -> None:
    def init(name: bytes) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", package, "init", "--config", name]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)

    named = init(b"caf\xe9.toml")
    assert named.returncode == 0 and b"caf\\udce9.toml" in named.stdout
    assert (tmp_path / "caf\udce9.toml").is_file()
    again, long = init(b"caf\xe9.toml"), init(b"x" * 300)
    assert (again.returncode, long.returncode) == (2, 2)
    assert b"exists and was not changed" in again.stderr and b"File name too long" in long.stderr


_LOADING = """if True:
    import hashlib
    from firstline_core.command_line import ended_by_signals
    with ended_by_signals():
        print("loading", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"model", b"", 500_000_000)  # in C, for minutes
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_a_start_that_loads_a_slow_model(ending: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _LOADING], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"loading\n"
            process.send_signal(ending)
            assert process.wait(10) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    "command", [("firstline_edge", "status"), ("firstline_gateway", "check")], ids=lambda one: one[0]
)
def test_ctrl_c_during_an_import_ends_a_command(command: tuple[str, str], tmp_path: Path) -> None:
    lost = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    pass\n"
    (tmp_path / "orjson.py").write_text(lost)  # as the import of a C extension loses the exception
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    # Tests in the background of a shell ignore the signal, and their processes inherit that.
    heed = "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    heed += 'runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)'
    done = subprocess.run(
        [sys.executable, "-c", heed, *command], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")
