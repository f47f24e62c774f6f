"""A gateway with a webhook: an enrolment reaches the receiver, and the gateway shows its webhooks."""

from __future__ import annotations

from pathlib import Path

from support.gateway import client_of, serving_gateway
from support.identities import csr, invite
from support.waiting import until
from support.webhook_receiver import receiver, secret_file

from firstline_core.protocol.enrolment import ENROL_PATH, parse_join_token
from firstline_gateway.commands import status
from firstline_gateway.identity import ca


async def test_an_enrolment_reaches_its_receiver(tmp_path: Path) -> None:
    with receiver() as found:
        webhook = {"url": found.url, "events": ["enrolments"], "secret_file": secret_file(tmp_path)}
        async with (
            serving_gateway(tmp_path, webhooks={"ops": webhook}) as (gateway, url),
            client_of(gateway, url, "ops", "operator") as operator,
        ):
            (token,) = await invite(operator, "cam")
            body = {"secret": parse_join_token(token).secret, "csr": csr(ca.new_key())}
            assert (await operator.post(ENROL_PATH, json=body)).status_code == 200
            await until(lambda: found.ids)
            (message,) = found.messages
            assert (message["type"], message["data"]["subject"]) == ("device.enrol", "device:cam")

            async def is_shown() -> bool:
                shown = (await operator.get("/firstline/v1/webhooks")).json()["webhooks"]
                return shown == [{"name": "ops", "problem": ""}]

            await until(is_shown)
    lines = status._lines({"live": True, "ready": True, "webhooks": [{"name": "ops", "problem": "p"}]}, has_token=True)
    assert "webhook: ops: p" in lines
