"""Rollouts and the audit trail of a gateway over its REST API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from firstline.fleet.request import send
from firstline_core.fleet.audit_log import Entry, Head
from firstline_core.fleet.rollout import (
    AUDIT_HEAD_PATH,
    AUDIT_PATH,
    PLAN_PATH,
    ROLLOUTS_PATH,
    AuditPage,
    Look,
    LookList,
    Plan,
    RolloutPage,
    RolloutSummary,
)
from firstline_core.ids import new_request_id


class Rollouts:
    """See `Fleet.rollouts`. Each method raises `FirstlineError` with what the gateway said."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def create(self, definition: Mapping[str, Any]) -> RolloutSummary:
        """Makes a rollout, which does nothing before `command(id, "start")`.

        Args:
            definition: bundle, version, manifest_sha256, and what else docs/fleet.md says.
        """
        headers = {"Idempotency-Key": new_request_id()}
        return send(self._client, "POST", ROLLOUTS_PATH, RolloutSummary, dict(definition), headers=headers)

    def plan(self, definition: Mapping[str, Any], size_bytes: int | None = None) -> Plan:
        """What a rollout would do, where a device fetches so many bytes."""
        params = {"size_bytes": str(size_bytes)} if size_bytes is not None else None
        return send(self._client, "POST", PLAN_PATH, Plan, dict(definition), params=params)

    def all(self, bundle: str = "") -> Iterator[RolloutSummary]:
        """Rollouts, the newest first."""
        after: str | None = ""
        while after is not None:
            page = self.page(after, bundle)
            yield from page.rollouts
            after = page.after

    def page(self, after: str = "", bundle: str = "", limit: int = 100) -> RolloutPage:
        """The next rollouts after one, the newest first."""
        params = {"after": after, "bundle": bundle, "limit": str(limit)}
        return send(self._client, "GET", ROLLOUTS_PATH, RolloutPage, params=params)

    def get(self, rollout: str) -> RolloutSummary:
        """How one stands."""
        return send(self._client, "GET", _path(rollout), RolloutSummary)

    def looks(self, rollout: str) -> tuple[Look, ...]:
        """The looks at one, each with its verdict and numbers."""
        found: list[Look] = []
        after: str | None = ""
        while after is not None:
            params = {"after": after} if after else None
            page = send(self._client, "GET", f"{_path(rollout)}/looks", LookList, params=params)
            found += page.looks
            after = page.after
        return tuple(found)

    def command(self, rollout: str, command: str, revision: int | None = None) -> RolloutSummary:
        """Does something to one: approve, start, pause, resume, promote, abort, retry or rollback.

        Args:
            rollout: its id.
            command: what.
            revision: that was seen; where somebody has changed it since, nothing is done.
        """
        headers = {"If-Match": f'"{revision}"'} if revision is not None else None
        return send(
            self._client, "POST", f"{_path(rollout)}/{quote(command, safe='')}", RolloutSummary, headers=headers
        )

    def trail(self, subject: str = "") -> Iterator[Entry]:
        """Who decided what, from the first on; about one subject, or all."""
        after: int | None = 0
        while after is not None:
            params = {"after": str(after), "subject": subject}
            page = send(self._client, "GET", AUDIT_PATH, AuditPage, params=params)
            yield from page.entries
            after = page.after

    def head(self) -> Head:
        """How far the trail goes, signed."""
        return send(self._client, "GET", AUDIT_HEAD_PATH, Head)


def _path(rollout: str) -> str:
    return f"{ROLLOUTS_PATH}/{quote(rollout, safe='')}"
