"""Doctor's checks of what the settings name: models, links, state directory, clock, access."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from firstline_edge.cli.findings import Finding, State, from_error
from firstline_edge.cli.link_checks import link_findings
from firstline_edge.cli.model_checks import model_findings
from firstline_edge.settings import EdgeSettings

_FSYNC_RUNS = 9
_FSYNC_SLOW_MS = 20.0
_DISK_SPARE_BYTES = 64 << 20
_EARLIEST = datetime(2026, 1, 1, tzinfo=UTC)


def all_findings(settings: EdgeSettings) -> list[Finding]:
    """Every finding about these settings on this device."""
    links, clock_offset_s = asyncio.run(link_findings(settings))
    return [
        *model_findings(settings),
        *links,
        *state_findings(settings),
        clock_finding(clock_offset_s),
        *secret_findings(settings),
    ]


def state_findings(settings: EdgeSettings) -> list[Finding]:
    """Whether promises can be kept here, and how long keeping one takes: every one waits for an fsync."""
    path = settings.state_dir
    # A directory that is not there yet is judged by the one that it will be made in.
    folder = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        fsync_ms = _fsync_ms(folder)
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        advice = f"sudo install -d -m 700 -o $USER {path}"
        return [from_error("state directory", f"{path} cannot be written: {error.strerror}", advice)]
    wanted_bytes = settings.outbox.limit_bytes + settings.outbox.answers_limit_bytes + settings.cache.disk_limit_bytes
    enough = free_bytes >= wanted_bytes + _DISK_SPARE_BYTES
    space = f"{free_bytes >> 20} MiB free on {folder}, outbox and cache may take {wanted_bytes >> 20}"
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
    return findings


def clock_finding(offset_s: float | None) -> Finding:
    """Whether the wall clock makes sense. Deadlines do not need it; logs, ages and certificates do.

    Args:
        offset_s: against a gateway's clock, None where none was reached.
    """
    now = datetime.now(UTC)
    shown = now.isoformat(timespec="seconds")
    if now < _EARLIEST:
        return Finding("clock", State.SLOW, f"{shown} was never set", "sudo timedatectl set-ntp true")
    if offset_s is not None and abs(offset_s) > 60:
        detail = f"{shown} is {abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} the gateway's"
        return Finding("clock", State.SLOW, detail, "sudo timedatectl set-ntp true")
    return Finding("clock", State.OK, shown)


def secret_findings(settings: EdgeSettings) -> list[Finding]:
    """Whether files with secrets are there, and private."""
    files = [("api.token_file", settings.api.token_file)]
    for number, link in enumerate(settings.links):
        files += [(f"links[{number}].token_file", link.token_file)]
        files += [
            (f"links[{number}].password_file", link.password_file),
            (f"links[{number}].tls_key_file", link.tls_key_file),
        ]
    findings = []
    for setting, file in files:
        if not file:
            continue
        try:
            mode = stat.S_IMODE(Path(file).stat().st_mode)
            readable = os.access(file, os.R_OK)
        except OSError as error:
            findings.append(from_error(setting, f"{file}: {error.strerror}", f"write the secret into {file}"))
            continue
        if not readable:
            findings.append(from_error(setting, f"{file} may not be read by this user", f"sudo chown $USER {file}"))
        elif mode & 0o077:
            findings.append(Finding(setting, State.SLOW, f"others may read {file}", f"chmod 600 {file}"))
        else:
            findings.append(Finding(setting, State.OK, f"{file} is private"))
    return findings


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
