"""Rollouts and the audit log of a gateway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote

from firstline.fleet.api import Api
from firstline_core.fleet import rollout_documents as wire
from firstline_core.fleet.audit_log import Entry, Head
from firstline_core.ids import new_request_id

_RETURN_STATES = ("returning", "returned")  # a device that failed before has a reason
_FAILED_STATES = ("failed", "silent", "stranded", *_RETURN_STATES)  # in the order in which a device has them


class Rollouts(Api):
    """See `Fleet.rollouts`."""

    def create(self, definition: Mapping[str, Any]) -> wire.RolloutSummary:
        """Creates a rollout; it begins with `command(id, "start")`.

        Args:
            definition: bundle, version, manifest_sha256 and the optional fields in docs/concepts/rollouts.md.
        """
        headers = {"Idempotency-Key": new_request_id()}
        return self._send("POST", wire.ROLLOUTS_PATH, wire.RolloutSummary, dict(definition), headers=headers)

    def plan(self, definition: Mapping[str, Any], size_bytes: int | None = None) -> wire.Plan:
        """Returns what a rollout would do if each device downloads `size_bytes`."""
        return self._send("POST", wire.PLAN_PATH, wire.Plan, dict(definition), params={"size_bytes": size_bytes})

    def all(self, bundle: str = "") -> Iterator[wire.RolloutSummary]:
        """Yields rollouts, the newest first."""
        for page in self._pages(wire.ROLLOUTS_PATH, wire.RolloutPage, {"bundle": bundle, "limit": 100}):
            yield from page.rollouts

    def page(self, after: str = "", bundle: str = "", limit: int = 100) -> wire.RolloutPage:
        """Returns the next page of rollouts, the newest first."""
        params = {"after": after, "bundle": bundle, "limit": limit}
        return self._send("GET", wire.ROLLOUTS_PATH, wire.RolloutPage, params=params)

    def get(self, rollout: str) -> wire.RolloutSummary:
        """Returns the state of a rollout."""
        return self._send("GET", _path(rollout), wire.RolloutSummary)

    def looks(self, rollout: str) -> tuple[wire.Look, ...]:
        """Returns the evaluations of a rollout, each with its verdict and numbers."""
        return tuple(look for page in self._pages(f"{_path(rollout)}/looks", wire.LookList) for look in page.looks)

    def command(self, rollout: str, command: str, revision: int | None = None) -> wire.RolloutSummary:
        """Applies a command: approve, start, pause, resume, promote, abort, retry or rollback.

        Args:
            rollout: id of the rollout.
            command: name of the command.
            revision: the caller's last known revision; if the rollout has changed since, the command is refused.
        """
        headers = {"If-Match": f'"{revision}"'} if revision is not None else None
        return self._send("POST", f"{_path(rollout)}/{quote(command, safe='')}", wire.RolloutSummary, headers=headers)

    def devices(self, rollout: str, state: str = "") -> Iterator[wire.RolloutDevice]:
        """Yields the devices of a rollout by name, in one state or in all."""
        for page in self._pages(f"{_path(rollout)}/devices", wire.RolloutDevices, {"state": state or None}):
            yield from page.devices

    def failed(self, rollout: wire.RolloutSummary, limit: int = 100) -> tuple[wire.RolloutDevice, ...]:
        """Returns the first devices that failed; also those that have since returned to their previous version."""
        failed: dict[str, wire.RolloutDevice] = {}
        # A device may go on to a later state while they are asked for, so a count of the summary does not rule one out.
        for state in _FAILED_STATES if any(map(rollout.devices.get, _FAILED_STATES)) else ():
            for one in self.devices(rollout.id, state):
                if one.reason or state not in _RETURN_STATES:
                    failed[one.device] = one
                if len(failed) == limit:
                    return tuple(failed.values())
        return tuple(failed.values())

    def audit_page(self, before: int = 2**53, subject: str = "", action: str = "", limit: int = 50) -> wire.AuditPage:
        """Returns a page of the audit log, the newest entries first."""
        params = {"before": before, "subject": subject, "action": action, "limit": limit}
        return self._send("GET", wire.AUDIT_PATH, wire.AuditPage, params=params)

    def export(self, since_s: float) -> tuple[Head, list[Entry]]:
        """Returns the entries of the audit log since a time with their signed head; the last one is this export."""
        head = self._send("POST", wire.AUDIT_EXPORT_PATH, Head, params={"since_s": since_s})
        following = self.audit_log(after=head.first - 1)
        return head, list(islice(following, head.number - head.first + 1))

    def audit_log(self, subject: str = "", after: int = 0) -> Iterator[Entry]:
        """Yields the entries of the audit log after a number, about one subject or all."""
        for page in self._pages(wire.AUDIT_PATH, wire.AuditPage, {"subject": subject}, after):
            yield from page.entries

    def head(self) -> Head:
        """Returns the signed head of the audit log."""
        return self._send("GET", wire.AUDIT_HEAD_PATH, Head)


def _path(rollout: str) -> str:
    return f"{wire.ROLLOUTS_PATH}/{quote(rollout, safe='')}"
