"""Doctor's checks of what the settings name: models, links, state directory, clock, access."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import stat
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from firstline_core.clock import EARLIEST_PLAUSIBLE_WALL_S, SYSTEM_CLOCK
from firstline_core.errors import ConfigError
from firstline_core.storage.files import DAMAGED
from firstline_core.storage.seals import CREDENTIAL, read_keys
from firstline_core.storage.secrets import read_secret
from firstline_edge.api.tokens import read_tokens
from firstline_edge.cli.contract_checks import contract_findings
from firstline_edge.cli.findings import Finding, State, from_error
from firstline_edge.cli.fleet_checks import fleet_findings
from firstline_edge.cli.hardware_checks import hardware_findings
from firstline_edge.cli.link_checks import link_findings
from firstline_edge.cli.model_checks import model_findings
from firstline_edge.identity.device_identity import DeviceIdentity
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import outbox_path

_FSYNC_RUNS = 9
_FSYNC_SLOW_MS = 20.0
_DISK_SPARE_BYTES = 64 << 20


_WRITE_ADVICE = {
    errno.ENOSPC: "free space there (df -h {path}), or set agent.state_dir to another disk",
    errno.EDQUOT: "free space there (quota), or set agent.state_dir to another disk",
    errno.EROFS: "sudo mount -o remount,rw the file system of {path}, or set agent.state_dir to another one",
}


def all_findings(settings: EdgeSettings) -> list[Finding]:
    """Every finding about these settings on this device."""
    identity = DeviceIdentity(settings, SYSTEM_CLOCK)
    links, clock_offset_s = asyncio.run(link_findings(settings, identity.credentials))
    return [
        *hardware_findings(settings),
        *model_findings(settings),
        *contract_findings(settings),
        *identity_findings(identity),
        *links,
        *fleet_findings(settings),
        *state_findings(settings),
        clock_finding(clock_offset_s),
        *secret_findings(settings),
    ]


def identity_findings(identity: DeviceIdentity) -> list[Finding]:
    """Checks the device's identity and its validity."""
    found = [from_error("identity", problem) for problem in identity.problems]
    described, credentials = identity.describe(), identity.credentials
    if described is None or credentials is None:
        return found
    left_s = credentials.identity.not_after_s - credentials.floor.now_s()
    detail = (
        f"{described['device']} at {described['gateway']}, certificate until {described['not_after']}, authority "
        f"{credentials.identity.authority[:16]}"
    )
    if left_s < 0:
        advice = (
            "start the agent, which renews it; where the gateway refuses: edge-agent join URL --token-file FILE --force"
        )
        return [*found, Finding("identity", State.SLOW, f"{detail}: it has ended", advice)]
    return [*found, Finding("identity", State.OK, detail)]


def state_findings(settings: EdgeSettings) -> list[Finding]:
    """Whether promises can be kept here, and how long keeping one takes: every one waits for an fsync."""
    path = settings.state_dir
    # A directory that is not there yet is judged by the one that it will be made in.
    folder = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        free_bytes = shutil.disk_usage(folder).free
        fsync_ms = _fsync_ms(folder)
    except OSError as error:
        advice = _WRITE_ADVICE.get(error.errno or 0, "sudo install -d -m 700 -o $USER {path}").format(path=path)
        return [from_error("state directory", f"{path} cannot be written: {error.strerror}", advice)]
    limits_bytes = settings.outbox.limit_bytes + settings.outbox.answers_limit_bytes + settings.cache.disk_limit_bytes
    wanted_bytes = max(0, limits_bytes - _held_bytes(path))
    enough = free_bytes >= wanted_bytes + _DISK_SPARE_BYTES
    space = f"{free_bytes >> 20} MiB free on {folder}, outbox and cache may grow by {wanted_bytes >> 20}"
    lower = "lower outbox.limit_bytes and cache.disk_limit_bytes, or free space"
    slow = fsync_ms > _FSYNC_SLOW_MS
    findings = [
        Finding("disk space", State.OK if enough else State.SLOW, space, "" if enough else lower),
        Finding(
            "fsync",
            State.SLOW if slow else State.OK,
            f"{fsync_ms:.2f} ms (median), which every promised correction waits for",
            "set agent.state_dir to a faster disk (SD cards are slow), or raise policy.deadline_reserve_ms"
            if slow
            else "",
        ),
    ]
    if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        findings.append(Finding("state directory", State.SLOW, f"others may read {path}", f"chmod 700 {path}"))
    aside = outbox_path(path).with_name(outbox_path(path).name + DAMAGED)
    if aside.exists():
        told = f"a damaged outbox was set aside as {aside}; corrections that it promised may be lost"
        findings.append(Finding("outbox", State.SLOW, told, "check the disk; delete that file once it is of no use"))
    return findings


def _held_bytes(state_dir: Path) -> int:
    """Returns the current size of outbox and cache."""
    found = 0
    for folder in ("outbox", "cache"):
        for file in (state_dir / folder).rglob("*"):
            with contextlib.suppress(OSError):  # SQLite's own files come and go
                found += file.stat().st_size
    return found


def clock_finding(offset_s: float | None) -> Finding:
    """Whether the wall clock makes sense. Deadlines do not need it; logs, ages and certificates do.

    Args:
        offset_s: against a gateway's clock, None where none was reached.
    """
    now = datetime.now(UTC)
    shown = now.isoformat(timespec="seconds")
    if now.timestamp() < EARLIEST_PLAUSIBLE_WALL_S:
        return Finding("clock", State.SLOW, f"{shown} was never set", "sudo timedatectl set-ntp true")
    if offset_s is not None and abs(offset_s) > 60:
        detail = f"{shown} is {abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} the gateway's"
        return Finding("clock", State.SLOW, detail, "sudo timedatectl set-ntp true")
    return Finding("clock", State.OK, shown)


def secret_findings(settings: EdgeSettings) -> list[Finding]:
    """Whether files with secrets are there, and private."""
    files: list[tuple[str, str, Callable[[str, str], object] | None]] = [
        ("api.token_file", settings.api.token_file, read_tokens),
        ("encryption.key_file", settings.encryption.key_file, read_keys),
    ]
    for number, link in enumerate(settings.links):
        files += [
            (f"links[{number}].token_file", link.token_file, read_secret),
            (f"links[{number}].password_file", link.password_file, read_secret),
            (f"links[{number}].tls_key_file", link.tls_key_file, None),
        ]
    findings = []
    for setting, file, read in files:
        if not file or file.startswith(CREDENTIAL):  # the service's own, which this command does not get
            continue
        try:
            mode = stat.S_IMODE(Path(file).stat().st_mode)
            readable = os.access(file, os.R_OK)
        except OSError as error:
            findings.append(from_error(setting, f"{file}: {error.strerror}", f"write the secret into {file}"))
            continue
        if not readable:
            findings.append(from_error(setting, f"{file} may not be read by this user", f"sudo chown $USER {file}"))
        elif read is not None and (fault := _fault(read, file, setting)):
            findings.append(from_error(setting, fault))
        elif mode & 0o077:
            findings.append(Finding(setting, State.SLOW, f"others may read {file}", f"chmod 600 {file}"))
        else:
            findings.append(Finding(setting, State.OK, f"{file} is private"))
    return findings


def _fault(read: Callable[[str, str], object], file: str, setting: str) -> str:
    """What `run` would refuse it for."""
    try:
        read(file, setting)
    except ConfigError as error:
        return error.message.removeprefix(f"{setting}: ")
    return ""


def _fsync_ms(folder: Path) -> float:
    spent_ms = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_FSYNC_RUNS):
            file.write(b"\0" * 4096)
            file.flush()
            started_s = time.perf_counter()
            os.fsync(file.fileno())
            spent_ms.append((time.perf_counter() - started_s) * 1000)
    return statistics.median(spent_ms)
