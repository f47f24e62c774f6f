"""Executes a Markdown page as its reader would: files are written, commands typed, outputs compared.

    ```toml, ```python, ```javascript   a block whose first line is a comment with a file's name becomes that file;
                                        "NAME, continued" is added to it
    ```console                          `$ COMMAND` is executed (`> ` continues it), what follows is its output
    ```sh                               not executed: see `shell_lines`
    ```text                             for the eye alone

A server (`edge-agent run`, `firstline-gateway run`) goes on until the same one is started again, or the page ends; what
`export` sets holds for the commands after it.
Outputs are compared by shape: numbers, ids, times and folders may differ, and a line `...` matches any lines. Shares
in percent, thresholds and temperatures are the same in every run, and so they must be on the page. On an exact page,
all numbers but durations are the same in every run.
"""

import os
import re
import selectors
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support import forks

TIMEOUT_S = 60.0

_KINDS = ("toml", "python", "javascript", "console", "sh", "text")
_FILE = re.compile(r"(?:#|//) ([\w.-]+\.\w+)(, continued)?$")
_SERVER = re.compile(r"(edge-agent|firstline-gateway|firstline) run\b")
_SCRIPTS = {"firstline": "firstline", "edge-agent": "firstline_edge", "firstline-gateway": "firstline_gateway"}
# What a shell would only split into words.
_PLAIN = re.compile(r"[\w ./=:@%,+-]+")
# What a reader copies from one output into the next command.
_COPIED = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|fl[tk]_[\w-]+|(?<=-)[0-9a-f]{8}(?=\.key)")
# What a run computes from the files here alone; spelt in letters it is not a number any more, and stays.
_SAME = re.compile(r"\d+(?:\.\d+)? ?%|\b(?:at least|kept from(?: a score of)?|temperature|threshold) \d+(?:\.\d+)?")
_SPELT = str.maketrans("0123456789", "abcdefghij")
_SHAPES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (_COPIED, "ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)"), "TIME"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{12,}\b"), "DIGEST"),
    # Of a signing key; a number of 8 digits is one only in the table of keys.
    (re.compile(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8}\b|(?<=\d of \d   )\d{8}\b|\b\d{8}(?=\*)"), "ID"),
    (re.compile(r"(?<![\w.:/])/[\w./-]+"), "PATH"),
    (re.compile(r"\b(?:x86_64|aarch64)\b"), "PROCESSOR"),
    (_SAME, lambda found: found[0].translate(_SPELT)),
)
_NUMBER = r"\d+(?:[.,]\d+)*(?:e-?\d+)?"
# Also the last two columns of `evaluate`'s table, which are times.
_DURATION = re.compile(rf"{_NUMBER}(?= (?:ms|s)\b)|(?<=_ms\": ){_NUMBER}|(?<=_ms\":){_NUMBER}|\d+\.\d\d +\d+\.\d\d$")


_FORKED = """
import json, os, signal, socket, sys

module, script, arguments = MODULE, INSTALLED, sys.argv[1:]
is_script = not module and arguments and arguments[0].endswith(".py")
if is_script:
    module, script, arguments = arguments[0], "", arguments[1:]
if not module or os.environ.get("PYTHONPATH"):  # read at the start of an interpreter
    os.execv(INSTALLED, [INSTALLED, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect(ADDRESS)
order = {"module": module, "arguments": arguments, "script": script, "cwd": os.getcwd(), "environ": dict(os.environ)}
socket.send_fds(server, [json.dumps(order).encode()], [0, 1, 2])
pid = int(server.recv(64))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = int(server.recv(64))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class MismatchError(AssertionError):
    """The page says something else than what happens."""


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its fence."""

    kind: str
    lines: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Command:
    """A line that the reader types, and the lines that the page shows after it."""

    text: str
    output: tuple[str, ...]
    line: int


def blocks(page: str) -> list[Block]:
    """The page's fenced blocks, in order."""
    found: list[Block] = []
    kind, started = "", 0
    inside: list[str] | None = None
    for number, line in enumerate(page.splitlines(), start=1):
        if not line.startswith("```"):
            if inside is not None:
                inside.append(line)
        elif inside is None:
            kind, inside, started = line[3:].strip(), [], number
            if kind not in _KINDS:
                raise MismatchError(
                    f"line {number}: a block of kind '{kind}'; nothing would try it: use {', '.join(_KINDS)}"
                )
        else:
            found.append(Block(kind, tuple(inside), started))
            inside = None
    if inside is not None:
        raise MismatchError(f"line {started}: a block without an end")
    return found


def shell_lines(page: str) -> list[str]:
    """What the page asks to type where no test can: the lines of its `sh` blocks."""
    return [line for block in blocks(page) if block.kind == "sh" for line in block.lines if line]


def commands(block: Block) -> list[Command]:
    """The commands of a console block."""
    found: list[tuple[str, list[str], int]] = []
    for number, line in enumerate(block.lines, start=block.line + 1):
        if line.startswith("$ "):
            found.append((line[2:], [], number))
        elif not found:
            raise MismatchError(f"line {number}: output without a command")
        elif line.startswith("> ") and not found[-1][1]:
            text, output, started = found[-1]
            found[-1] = (f"{text}\n{line[2:]}", output, started)
        else:
            found[-1][1].append(line)
    return [Command(text, tuple(output), number) for text, output, number in found]


def shape(line: str, exact: bool = False) -> str:
    """A line without what differs from run to run: all numbers, or durations alone where the others are exact."""
    for pattern, instead in _SHAPES:
        line = pattern.sub(instead, line)
    line = _DURATION.sub("N", line) if exact else re.sub(_NUMBER, "N", line)
    return re.sub(r"\s+", " ", re.sub(r"─+", "─", line)).strip()


def matches(expected: tuple[str, ...], actual: tuple[str, ...], exact: bool = False) -> bool:
    """Whether the lines have the same shape; `...` matches any number of lines."""
    if not expected:
        return not actual
    if expected[0].strip() == "...":
        return any(matches(expected[1:], actual[skip:], exact) for skip in range(len(actual) + 1))
    same = bool(actual) and shape(expected[0], exact) == shape(actual[0], exact)
    return same and matches(expected[1:], actual[1:], exact)


@dataclass
class Reader:
    """Follows a page in a folder.

    Args:
        folder: the working directory.
        environ: of every command.
        ports: the page's ports, and those that are used instead.
        skipped: beginnings of commands that cannot run here, each with the reason; their syntax is checked.
        exact: whether all numbers but durations must be those of the page.
    """

    folder: Path
    environ: Mapping[str, str]
    ports: Mapping[str, str]
    skipped: Mapping[str, str] = field(default_factory=dict)
    exact: bool = False
    executed: list[str] = field(default_factory=list)
    _servers: dict[str, forks.ForkedProcess] = field(default_factory=dict)
    _copied: dict[str, str] = field(default_factory=dict)
    _exports: list[str] = field(default_factory=list)

    def follow(self, *pages: str) -> None:
        """Does all that the pages say, one after the other; servers run until the last one's end.

        Raises:
            MismatchError: names the line of the page, what was expected and what came.
        """
        try:
            for block in (block for page in pages for block in blocks(page)):
                if block.kind == "console":
                    for command in commands(block):
                        self._execute(command)
                elif block.kind in ("toml", "python", "javascript"):
                    self._write(block)
            for name in list(self._servers):
                self._stop(name)
        finally:
            for process in self._servers.values():
                process.kill()
                process.communicate()

    def _write(self, block: Block) -> None:
        named = _FILE.match(block.lines[0]) if block.lines else None
        if named is None:
            raise MismatchError(f"line {block.line}: the first line is a comment with the file's name")
        text = self._ours("\n".join(block.lines[1:])) + "\n"
        file = self.folder / named[1]
        file.write_text((file.read_text() if named[2] else "") + text)

    def _execute(self, command: Command) -> None:
        if command.text.startswith(tuple(self.skipped)):
            subprocess.run(["bash", "-n", "-c", command.text], check=True)
            return
        text = self._ours(command.text)
        server = _SERVER.match(text)
        output = self._start(server[1], text, command) if server else self._run(text, command)
        expected = tuple(self._ours(line).rstrip() for line in command.output)
        if not matches(expected, output, self.exact):
            raise MismatchError(
                f"line {command.line}: `{text}` said\n  " + "\n  ".join(output) + "\nand the page shows\n  "
                + "\n  ".join(expected)
            )  # fmt: skip
        shown, actual = ([found for line in lines for found in _COPIED.findall(line)] for lines in (expected, output))
        self._copied |= dict(zip(shown, actual, strict=False))
        self.executed.append(command.text)

    def _run(self, text: str, command: Command) -> tuple[str, ...]:
        name, *arguments = text.split()
        if name in _SCRIPTS and _PLAIN.fullmatch(text) and not self._exports:
            done = forks.run_forked(_SCRIPTS[name], *arguments, environ=self.environ, cwd=self.folder, script=name)
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", "\n".join([*self._exports, text])],
                cwd=self.folder,
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        if done.returncode:
            raise MismatchError(
                f"line {command.line}: `{text}` ended with {done.returncode}: {done.stderr}{done.stdout}"
            )
        if text.startswith("export "):
            self._exports.append(text)
        return tuple(line.rstrip() for line in done.stdout.splitlines())

    def _start(self, name: str, text: str, command: Command) -> tuple[str, ...]:
        if name in self._servers:
            self._stop(name)
        with (self.folder / f"{name}.log").open("a") as log:
            script, *arguments = shlex.split(text)
            process = forks.ForkedProcess(
                _SCRIPTS[script], *arguments, environ=self.environ, cwd=self.folder, stderr=log, script=script
            )
        self._servers[name] = process
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            # Buffered lines are not seen by the selector, and a process writes all lines of its start at once.
            started = selector.select(TIMEOUT_S)
            lines = [process.stdout.readline() for _ in command.output or ("",)] if started else []
        if not all(lines) or not lines:
            raise MismatchError(
                f"line {command.line}: `{text}` did not start: {(self.folder / f'{name}.log').read_text()}"
            )
        return tuple(line.rstrip() for line in lines)

    def _stop(self, name: str) -> None:
        process = self._servers.pop(name)
        process.send_signal(signal.SIGINT)  # what Ctrl-C sends
        output, _ = process.communicate(timeout=TIMEOUT_S)
        if process.returncode or output:
            raise MismatchError(f"`{name} run` ended with {process.returncode} and said: {output}")

    def _ours(self, text: str) -> str:
        for theirs, ours in {**self.ports, **self._copied}.items():
            text = text.replace(theirs, ours)
        return text


def environ(home: Path, **more: str) -> dict[str, str]:
    """What a reader with this installation activated would have, and no setting of Firstline's.

    The installed scripts are replaced by ones that have the same command forked (see `support/forks.py`), and `python`
    by one that has a script forked.
    """
    scripts = home / "bin"
    scripts.mkdir()
    for name, module in [*_SCRIPTS.items(), ("python", "")]:
        script = scripts / name
        installed = str(Path(sys.executable).parent / name)
        constants = f"ADDRESS, MODULE, INSTALLED = {str(forks.server())!r}, {module!r}, {installed!r}"
        script.write_text(f"#!{sys.executable} -IS\n{constants}\n{_FORKED}")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FIRSTLINE_")}
    path = os.pathsep.join([str(scripts), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return inherited | {"PATH": path, "HOME": str(home)} | more


def links(page: str) -> Iterator[tuple[str, str]]:
    """The files that the page links to ("" is itself), and the places in them ("" is all of it)."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page):
        if "://" not in target:
            file, _, place = target.partition("#")
            yield file, place


def places(page: str) -> set[str]:
    """What links may name in a page: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
