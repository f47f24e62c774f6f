"""The positions of webhooks in their queues, within a caller's transaction.

Replicas that share a store share its webhooks. One that has messages to send claims the webhook for a while, in which
no other replica sends for it. If it dies, the claim expires and another replica sends the same messages again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import sqlalchemy as sa

from firstline_gateway.store.schema import METADATA, insert_missing

POSITIONS = sa.Table(
    "webhook_positions",
    METADATA,
    sa.Column("webhook", sa.String(80), primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("holder", sa.String(64), nullable=False),
    sa.Column("due_service_s", sa.Double, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("failing_service_s", sa.Double, nullable=True),
    sa.Column("problem", sa.Text, nullable=False),
    sa.Column("delivered", sa.Boolean, nullable=False),
)

_P = POSITIONS.c


@dataclass(frozen=True, slots=True)
class Position:
    """The state of one webhook.

    Attributes:
        number: of the last message in the queue that was delivered or is not wanted.
        due_service_s: time of service before which nothing is sent: until a claim or a delay ends.
        failures: attempts that failed since the last delivery.
        failing_service_s: time of service of the first of them; None if there is none.
        problem: of the latest attempt; "" after a delivery.
        delivered: whether any message was ever delivered.
    """

    number: int
    due_service_s: float = 0.0
    failures: int = 0
    failing_service_s: float | None = None
    problem: str = ""
    delivered: bool = False


_COLUMNS = tuple(_P[name] for name in Position.__dataclass_fields__)


def find(connection: sa.Connection, webhook: str) -> Position | None:
    """Returns the state of a webhook; None for a new one."""
    row = connection.execute(sa.select(*_COLUMNS).where(_P.webhook == webhook)).one_or_none()
    return None if row is None else Position(*row)


def add(connection: sa.Connection, webhook: str, number: int) -> None:
    """Stores a new webhook, which receives what comes after the number; one that is stored already stays as it is."""
    insert_missing(connection, POSITIONS, {"webhook": webhook, "holder": "", **asdict(Position(number))})


def claim(connection: sa.Connection, webhook: str, holder: str, service_s: float, for_s: float) -> Position | None:
    """Claims a webhook for a replica; returns None if another claimed it, or a delay has not ended."""
    due = (_P.webhook == webhook, _P.due_service_s <= service_s)
    claimed = sa.update(POSITIONS).where(*due).values(holder=holder, due_service_s=service_s + for_s)
    row = connection.execute(claimed.returning(*_COLUMNS)).one_or_none()
    return None if row is None else Position(*row)


def release(connection: sa.Connection, webhook: str, holder: str, after: Position) -> bool:
    """Stores the state after some attempts, and ends the claim; returns False if another replica has claimed since."""
    mine = (_P.webhook == webhook, _P.holder == holder)
    return connection.execute(sa.update(POSITIONS).where(*mine).values(holder="", **asdict(after))).rowcount > 0
