"""MQTT topics: where each fact of a device lives. Pure functions of names; the map is in the class below."""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.errors import ConfigError, ProtocolError, RequestError

DEFAULT_PREFIX = "firstline/v1"

_NAME_LIMIT_CHARACTERS = 128
# Wildcards, the separator, the mark of shared subscriptions and of the broker's own topics, and NUL.
_REFUSED = frozenset("+#/$\0")


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one device.

    Raises:
        ConfigError: a prefix or device name that a topic cannot carry.
    """

    device: str
    prefix: str = DEFAULT_PREFIX

    def __post_init__(self) -> None:
        _check_prefix(self.prefix)
        if why := _fault(self.device):
            raise ConfigError(f"The device name {self.device!r} {why}.")

    @property
    def birth(self) -> str:
        """Retained: session id, capabilities, model digests."""
        return self._own("birth")

    @property
    def state(self) -> str:
        """Retained, and the last will: online or offline, with the session id."""
        return self._own("state")

    @property
    def response(self) -> str:
        """The gateway's answers to this device's requests."""
        return self._own("res")

    @property
    def results(self) -> str:
        """Corrections, for applications near the device; never retained."""
        return self._own("results")

    @property
    def desired(self) -> str:
        """Retained: what the fleet wants this device to run."""
        return self._own("desired")

    @property
    def reported(self) -> str:
        """Retained: what it runs."""
        return self._own("reported")

    @property
    def telemetry(self) -> str:
        return self._own("telemetry")

    def request(self, model: str) -> str:
        """Where this device asks for `model`.

        Raises:
            RequestError: a model name that a topic cannot carry.
        """
        if why := _fault(model):
            raise RequestError(f"The model name {model!r} {why}.")
        return f"{self._own('req')}/{model}"

    def _own(self, leaf: str) -> str:
        return f"{self.prefix}/{self.device}/{leaf}"


def shared_requests(group: str, prefix: str = DEFAULT_PREFIX) -> str:
    """The filter by which the gateway's replicas share every device's requests (MQTT 5, section 4.8.2).

    Raises:
        ConfigError: a group or prefix that a topic filter cannot carry.
    """
    _check_prefix(prefix)
    if why := _fault(group):
        raise ConfigError(f"The shared subscription's group {group!r} {why}.")
    return f"$share/{group}/{prefix}/+/req/+"


def parse_request(topic: str, prefix: str = DEFAULT_PREFIX) -> tuple[str, str]:
    """The (device, model) of a request topic.

    Raises:
        ProtocolError: it is not one.
    """
    head = f"{prefix}/"
    parts = topic[len(head) :].split("/") if topic.startswith(head) else []
    if len(parts) != 3 or parts[1] != "req" or _fault(parts[0]) or _fault(parts[2]):
        raise ProtocolError(f"'{topic}' is not a request topic; those are {prefix}/DEVICE/req/MODEL.")
    return parts[0], parts[2]


def _check_prefix(prefix: str) -> None:
    for level in prefix.split("/"):
        if why := _fault(level):
            raise ConfigError(f"The topic prefix {prefix!r} has a level {level!r} that {why}.")


def _fault(level: str) -> str:
    """What keeps `level` from being one level of a topic; "" if nothing does."""
    if not level:
        return "is empty; give at least one character"
    if len(level) > _NAME_LIMIT_CHARACTERS:
        return f"has {len(level)} characters; a topic level here has at most {_NAME_LIMIT_CHARACTERS}"
    found = sorted(_REFUSED.intersection(level))
    if found:
        return f"contains {', '.join(map(repr, found))}, which MQTT topics reserve; leave it out"
    # Section 1.5.4 lets a broker close the connection over these; surrogates are not UTF-8 at all.
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in level):
        return "contains control characters, which MQTT brokers may refuse; leave them out"
    return ""
