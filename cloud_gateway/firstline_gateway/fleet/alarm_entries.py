"""The audit log's entries about alarms that devices raised by their own audits, within a caller's transaction.

The gateway learns of an alarm from requests and from telemetry, whichever comes first; each alarm has one entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection

from firstline_gateway import audit_log
from firstline_gateway.fleet.totals import Totals

DEVICE_ALARM = "contract.device_alarm"
"""Action of the audit log's entry about an alarm that a device raised."""

Alarms = Mapping[tuple[str, int], Mapping[str, Any]]
"""Further details of each alarm, by the name and version of its model."""

_A_DAY = 16  # entries about one device, which chooses what it reports
_DAY_S = 86_400.0
_LATE_S = 900.0  # telemetry from before an alarm may arrive so much later


def note(connection: Connection, device: str, alarms: Alarms, before: Totals, *, before_s: float, now_s: float) -> None:
    """Adds an entry for each alarm that is neither in the telemetry before nor in an entry since then.

    Args:
        connection: of the transaction.
        device: that raised the alarms.
        alarms: that it reports now.
        before: its counts by its previous telemetry.
        before_s: wall time of that telemetry; 0 if there is none.
        now_s: wall time.
    """
    lasting = {(model.name, model.version) for model in before.models if model.alarm}
    raised = [key for key in alarms if key not in lasting]
    if not raised:
        return
    audit_log.lock(connection)  # another replica may note the same alarm at this moment
    subject = f"device:{device}"
    wanted = audit_log.Wanted(subject=subject, action=DEVICE_ALARM, since_s=now_s - _DAY_S)
    today = audit_log.page(connection, wanted, _A_DAY)
    since_s = min(before_s, now_s - _LATE_S) if before_s else 0.0
    details = [msgspec.json.decode(entry.details) for entry in today if entry.at_s >= since_s]
    noted = {(each.get("model"), each.get("version")) for each in details}
    for name, version in [key for key in raised if key not in noted][: _A_DAY - len(today)]:
        found = {"model": name, "version": version, **alarms[name, version]}
        audit_log.add(connection, now_s, "rule:contract", DEVICE_ALARM, subject, **found)
