"""How a revoked device leaves the broker.

Mosquitto looks at revocations when a connection is made. An open connection continues: with the new access list it can
neither write nor receive, but it stays open. A broker ends the older of two sessions of one client id
(MQTT 5, section 3.1.4), and on the gateways' listener client ids are free: so the gateway takes the device's, and
leaves at once. The device cannot come back, for its certificate is on the list by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from firstline_core.errors import FirstlineError
from firstline_core.protocol.mqtt import Message, MqttSettings
from firstline_core.protocol.mqtt_connection import Connection
from firstline_core.telemetry.logs import logger

log = logger(__name__)


async def end_sessions(settings: MqttSettings, devices: Iterable[str]) -> list[str]:
    """Ends the sessions of devices, one after the other up to the first that fails, and what the broker kept for them.

    Args:
        settings: of the gateway's own connection.
        devices: their names, which are their client ids.

    Returns:
        Those of which the broker did not say so.
    """
    left = list(devices)
    while left:
        device = left[0]
        connection = Connection(
            replace(settings.renewed(), client_id=device),
            will=None,
            clean_start=True,
            session_expiry_s=0,
            on_message=_ignore,
        )
        try:
            await connection.open()
        except FirstlineError as error:
            log.warning("revoked devices' MQTT sessions not ended", devices=len(left), error=error.message)
            return left
        finally:
            await connection.close()
        del left[0]
    return left


def _ignore(message: Message) -> None:
    message.ack()
