"""`docker` for tests of pages: runs a container's command on this machine, with the container's paths mapped to ours.

It knows the options that the pages use, and fails on others. A container that goes on writes its process id to
`docker.pid`.
"""

import argparse
import os
import re
import secrets
import shlex
import subprocess
import sys
from pathlib import Path

_CHECKOUT = Path(__file__).parents[2]


def install(folder: Path) -> None:
    """Writes the program `docker` into a folder of the PATH."""
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(__file__)} "$@"\n')
    program.chmod(0o755)


def main(arguments: list[str]) -> int:
    """Runs `docker build` or `docker run`, and returns the exit code."""
    parser = argparse.ArgumentParser("docker")
    verbs = parser.add_subparsers(dest="verb", required=True)
    build, run = verbs.add_parser("build"), verbs.add_parser("run")
    for name in ("-f", "-t"):
        build.add_argument(name, required=True)
    build.add_argument("context")
    for name in ("--rm", "--detach", "--read-only"):
        run.add_argument(name, action="store_true")
    for name in ("--cgroupns", "--name", "--network", "--tmpfs", "--workdir"):
        run.add_argument(name)
    for name in ("--volume", "--env"):
        run.add_argument(name, action="append", default=[])
    run.add_argument("image")
    run.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    return 0 if options.verb == "build" and (_CHECKOUT / options.f).is_file() else _run(options)


def _run(options: argparse.Namespace) -> int:
    ours = {"/host": ""}  # the kernel's folders
    for volume in options.volume:
        here, inside, *_ = volume.split(":")
        if not inside.startswith("/host/"):
            mounted = Path(here).absolute()  # a named volume is a folder here
            mounted.mkdir(exist_ok=True) if "/" not in here else None
            assert mounted.exists(), f"{here} is not there, so Docker would create a folder"
            ours[inside] = str(mounted)
    default = re.search(r"^CMD (\[.*\])$", (_CHECKOUT / "edge_agent" / "Dockerfile").read_text(), re.MULTILINE)
    assert default is not None
    command = options.command or [part.strip('" ') for part in default[1].strip("[]").split(",")]
    environment = dict(os.environ) | dict(each.split("=", 1) for each in options.env)
    mapped = {
        name: _mapped(value, ours) if name.startswith("FIRSTLINE_") else value for name, value in environment.items()
    }
    process = subprocess.Popen(
        [_mapped(part, ours) for part in command],
        env=mapped,
        cwd=options.workdir and _scratch(),
        stdout=subprocess.DEVNULL if options.detach else None,
        stderr=subprocess.DEVNULL if options.detach else None,
        start_new_session=options.detach,
    )
    if not options.detach:
        return process.wait()
    Path("docker.pid").write_text(str(process.pid))
    print(secrets.token_hex(32))
    return 0


def _scratch() -> Path:
    folder = Path("scratch").absolute()
    folder.mkdir()
    return folder


def _mapped(text: str, ours: dict[str, str]) -> str:
    for inside, here in ours.items():
        text = re.sub(rf"{inside}(?=[/\"']|$)", here or "/", text)
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
