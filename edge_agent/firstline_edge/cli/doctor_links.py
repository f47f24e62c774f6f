"""Checks of `doctor` on the links: name, connection, identity of the far end, token, round trip, and served bundles."""

from __future__ import annotations

import asyncio
import secrets
import socket
import statistics
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx

from firstline_core.bundle.manifest import Manifest
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, FirstlineError, RemoteTimeoutError
from firstline_core.protocol.happy_eyeballs import DELAY_S
from firstline_core.protocol.http import error_from
from firstline_core.protocol.http_client import HTTP_FAILURES, open_async_client
from firstline_core.protocol.mqtt_messages import Publication, Topics
from firstline_core.telemetry.wording import rounded
from firstline_edge.cli.agent_api import agent_status
from firstline_edge.cli.findings import Finding, Severity, hint_if, ok, problem, warning
from firstline_edge.cloud.http_link import HttpLink, client_settings, tls_context, token_of
from firstline_edge.cloud.link import LinkStatus
from firstline_edge.cloud.links import mqtt_settings
from firstline_edge.identity.credentials import Credentials
from firstline_edge.settings.settings import EdgeSettings, LinkSection, link_names
from firstline_edge.state import is_in_use

_PROBES = 5
_TIMEOUT_S = 3.0
_ADVICE = "give both the same bundle: copy this device's folder {path} into the gateway's models.directory, or its here"


async def link_findings(
    settings: EdgeSettings, bundles: Sequence[Bundle] = (), credentials: Credentials | None = None
) -> tuple[list[Finding], float | None]:
    """Returns findings for each link, and the seconds by which this clock is ahead of a gateway's; None if unknown.

    Args:
        settings: contain the links.
        bundles: of this device, which each gateway is to serve.
        credentials: of a device that has joined.
    """
    if not settings.links:
        advice = "add a [[links]] section, or uncertain answers are never corrected"
        return [warning("links", "none configured", advice)], None
    findings: list[Finding] = []
    offset_s: float | None = None
    for number, (name, section) in enumerate(zip(link_names(settings.links), settings.links, strict=True)):
        host, port = _address(section)
        subject = f"links[{number}] {section.kind} {host}:{port}"
        shows_identity = credentials is not None and section.shows_identity
        if section.kind == "mqtt" and shows_identity and _agent_runs(settings):
            # With the agent's certificate, the broker would end the agent's session.
            findings.append(await _link_of_running_agent(subject, settings, name, f"{host}:{port}"))
            continue
        try:
            probe = _open_probe(section, settings, credentials)
        except ConfigError as error:  # what `run` would refuse
            findings.append(problem(subject, error.message))
            continue
        failure = await _unreachable(subject, section, host, port)
        if failure is not None:
            findings.append(failure)
            continue
        findings.append(await _round_trip_finding(subject, probe, settings))
        if section.kind == "http" and findings[-1].severity is not Severity.ERROR:
            access, measured_s = await _access_findings(subject, section, bundles, credentials)
            findings += access
            offset_s = measured_s if measured_s is not None else offset_s
    return findings, offset_s


class _BrokerSession:
    """An MQTT session under a name of its own, so that the agent's session continues.

    Raises:
        ConfigError: see `mqtt_settings`.
    """

    def __init__(self, section: LinkSection, device_id: str, credentials: Credentials | None) -> None:
        from firstline_core.protocol.mqtt import MqttClient

        self._topics = Topics(device_id, section.topic_prefix)
        name = f"firstline-doctor-{device_id}-{secrets.token_hex(4)}"
        self._client = MqttClient(mqtt_settings(section, name, credentials))

    async def probe(self, timeout_s: float) -> None:
        """Makes one round trip: a publication that the device may make, acknowledged by the broker."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.connect(timeout_s)
                await self._client.publish(Publication(self._topics.telemetry, b'{"event": "doctor"}', expiry_s=1))
        except TimeoutError as error:
            raise RemoteTimeoutError("The MQTT broker is silent.") from error

    async def close(self) -> None:
        await self._client.close()


def _open_probe(
    section: LinkSection, settings: EdgeSettings, credentials: Credentials | None
) -> HttpLink | _BrokerSession:
    if section.kind == "http":
        return HttpLink(section, credentials)
    return _BrokerSession(section, settings.device_id, credentials)


def _agent_runs(settings: EdgeSettings) -> bool:
    try:
        return is_in_use(settings.state_dir)
    except OSError:
        return True  # a running agent must not be disturbed


async def _link_of_running_agent(subject: str, settings: EdgeSettings, name: str, address: str) -> Finding:
    """Returns the state of a link that the running agent uses; `address` is the one in the settings."""
    try:
        _, status = await asyncio.to_thread(agent_status, settings)
    except FirstlineError as error:
        return warning(subject, f"not checked, because the running agent does not give its status: {error.message}")
    link = status.get("links", {}).get(name, {})
    if link.get("address") != address:
        return problem(subject, "the running agent does not use this link", "restart it with these settings")
    if link["state"] == LinkStatus.UP:
        return ok(subject, "the running agent's link is up")
    if link["state"] == LinkStatus.UNKNOWN:
        return warning(subject, "the running agent has had no answer over this link yet")
    return problem(subject, f"the running agent's link is {link['state']}: {link['problem']}", "edge-agent status")


def _address(section: LinkSection) -> tuple[str, int]:
    if section.kind == "mqtt":
        return section.host, section.port
    parts = urlsplit(section.url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


async def _unreachable(subject: str, section: LinkSection, host: str, port: int) -> Finding | None:
    """Returns why a TCP connection fails: the name, or the address."""
    if section.proxy:
        return None
    server = "the gateway" if section.kind == "http" else "mosquitto"
    limit_s = 2 * _TIMEOUT_S  # for the name and the connection
    try:
        async with asyncio.timeout(limit_s):
            _, writer = await asyncio.open_connection(host, port, happy_eyeballs_delay=DELAY_S)
            writer.close()
    except socket.gaierror as error:
        return problem(subject, f"the name {host} has no address: {error}", f"getent hosts {host}")
    except (OSError, TimeoutError) as error:
        why = str(error) or f"nothing answered within {limit_s:.0f} s"
        return problem(
            subject, f"no connection: {why}", f"start {server}, or let the firewall pass: nc -vz {host} {port}"
        )
    return None


async def _round_trip_finding(subject: str, probe: HttpLink | _BrokerSession, settings: EdgeSettings) -> Finding:
    """Checks whether the far end is the expected one, and measures the median round trip."""
    try:
        await probe.probe(_TIMEOUT_S)  # the first one connects
        spent_ms = []
        for _ in range(_PROBES):
            started_s = time.perf_counter()
            await probe.probe(_TIMEOUT_S)
            spent_ms.append((time.perf_counter() - started_s) * 1000)
    except FirstlineError as error:
        return problem(subject, error.message)
    finally:
        await probe.close()
    p50_ms = statistics.median(spent_ms)
    is_slow = p50_ms > settings.policy.default_timeout_ms / 2
    advice = "raise policy.default_timeout_ms: half of it goes to one round trip"
    return hint_if(is_slow, subject, f"answers in {rounded(p50_ms)} ms (p50)", advice)


async def _access_findings(
    subject: str, section: LinkSection, bundles: Sequence[Bundle], credentials: Credentials | None
) -> tuple[list[Finding], float | None]:
    """Checks whether the gateway accepts this device and serves its bundles; also returns the clock's offset (seconds).

    The gateway lists its bundles only for an accepted token.
    """
    token, tls = token_of(section), tls_context(section, credentials)
    try:
        async with open_async_client(client_settings(section, tls, connections=1)) as client:
            client.timeout = httpx.Timeout(_TIMEOUT_S)
            if token:
                client.headers["Authorization"] = f"Bearer {token}"
            response = await client.get("/v2")
            finding = (
                _certificate_finding(f"{subject} certificate", response)
                if credentials is not None and section.shows_identity
                else _token_finding(f"{subject} token", token, response.status_code)
            )
            findings = [finding]
            if finding.severity is Severity.OK:
                findings += await served_findings(subject, client, bundles)
    except (*HTTP_FAILURES, OSError) as error:
        return [problem(f"{subject} token", f"the gateway did not answer: {str(error) or type(error).__name__}")], None
    date = response.headers.get("date")
    try:
        offset_s = time.time() - parsedate_to_datetime(date).timestamp() if date else None
    except (ValueError, OverflowError):  # not a date
        offset_s = None
    return findings, offset_s


def _certificate_finding(subject: str, response: httpx.Response) -> Finding:
    if response.status_code == 200:
        return ok(subject, "is accepted")
    return problem(subject, error_from(response.status_code, response.content).message)


def _token_finding(subject: str, token: str, status: int) -> Finding:
    if status in (401, 403):
        return problem(
            subject,
            "is refused" if token else "is missing, and the gateway requires one",
            "on the gateway: firstline-gateway key create NAME --device; then put it into token_file",
        )
    if status != 200:
        return problem(subject, f"the gateway answers /v2 with status {status}")
    return ok(subject, "is accepted" if token else "is not needed")


async def served_findings(subject: str, client: httpx.AsyncClient, bundles: Sequence[Bundle]) -> list[Finding]:
    """Returns whether the gateway serves each bundle of this device.

    Args:
        subject: the link.
        client: of the gateway, with the device's token.
        bundles: of this device.
    """
    if not bundles:
        return []
    try:
        response = await client.get("/firstline/v1/models")
        served = _digests(response.json()) if response.status_code == 200 else None
        index = await client.post("/v2/repository/index")
        away = {(each["name"], each["version"]): each["reason"] for each in index.json() if each["reason"]}
    except (*HTTP_FAILURES, ValueError, KeyError, TypeError, AttributeError):
        served = None
    if served is None:
        return [problem(f"{subject} models", "the gateway does not say which models it serves")]
    return [
        _compared(
            f"{subject} model {bundle.manifest.name} {bundle.manifest.version}",
            bundle.manifest,
            served.get(bundle.manifest.name, {}),
            away.get((bundle.manifest.name, str(bundle.manifest.version)), ""),
            _ADVICE.format(path=bundle.path),
        )
        for bundle in bundles
    ]


def _digests(listed: Any) -> dict[str, dict[str, str]]:
    """Returns the digests of full models by name and version."""
    digests: dict[str, dict[str, str]] = {}
    for model in listed["models"]:
        digests.setdefault(model["name"], {})[str(model["version"])] = model["full_model_digest"]
    return digests


def _compared(subject: str, manifest: Manifest, versions: dict[str, str], away: str, advice: str) -> Finding:
    """Compares a bundle with the digests of the gateway's full models, by version.

    Args:
        subject: of the finding.
        manifest: of the device's bundle.
        versions: the versions that the gateway serves.
        away: why the gateway does not serve this version; "" if it serves it or does not know it.
        advice: how both get the same bundle.
    """
    if away and str(manifest.version) not in versions:
        return problem(subject, f"the gateway does not serve it: {away}")
    if not versions:
        return problem(subject, f"the gateway does not serve {manifest.name} at all", advice)
    digest = versions.get(str(manifest.version))
    if digest is None:
        others = ", ".join(sorted(versions))
        return problem(subject, f"the gateway serves {manifest.name} only in version {others}", advice)
    if digest != manifest.full_digest:
        detail = f"the gateway's full model is {digest[:12]}, this bundle names {manifest.full_digest[:12] or 'none'}"
        return problem(subject, detail, advice)
    return ok(subject, f"the gateway serves the same bundle, full model {digest[:12]}")
