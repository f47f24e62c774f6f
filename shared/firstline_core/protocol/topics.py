"""MQTT topics of devices. Pure functions of names."""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.errors import ConfigError, ProtocolError, RequestError

DEFAULT_PREFIX = "firstline/v1"

_NAME_LIMIT_CHARACTERS = 128
# Wildcards, the separator, the prefix of shared subscriptions and of the broker's own topics, and NUL.
_REFUSED = frozenset("+#/$\0")


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one device.

    Raises:
        ConfigError: an invalid prefix or device name.
    """

    device: str
    prefix: str = DEFAULT_PREFIX

    def __post_init__(self) -> None:
        _check_prefix(self.prefix)
        if why := _fault(self.device):
            raise ConfigError(f"The device name {self.device!r} {why}.")

    @property
    def birth(self) -> str:
        """Topic of session id, capabilities and model digests; retained."""
        return self._own("birth")

    @property
    def state(self) -> str:
        """Topic of online or offline, with the session id; retained, and the last will."""
        return self._own("state")

    @property
    def response(self) -> str:
        """Topic of the gateway's answers to this device."""
        return self._own("res")

    @property
    def results(self) -> str:
        """Topic of corrections, for applications near the device; never retained."""
        return self._own("results")

    @property
    def desired(self) -> str:
        """Topic of the desired state; retained."""
        return self._own("desired")

    @property
    def reported(self) -> str:
        """Topic of the reported state; retained."""
        return self._own("reported")

    @property
    def telemetry(self) -> str:
        return self._own("telemetry")

    def request(self, model: str) -> str:
        """Returns the topic of this device's requests to `model`.

        Raises:
            RequestError: an invalid model name.
        """
        if why := _fault(model):
            raise RequestError(f"The model name {model!r} {why}.")
        return f"{self._own('req')}/{model}"

    def _own(self, leaf: str) -> str:
        return f"{self.prefix}/{self.device}/{leaf}"


def shared_requests(group: str, prefix: str = DEFAULT_PREFIX) -> str:
    """Returns the filter with which the gateway's replicas share the requests of all devices (MQTT 5, section 4.8.2).

    Raises:
        ConfigError: an invalid group or prefix.
    """
    _check_prefix(prefix)
    if why := _fault(group):
        raise ConfigError(f"The shared subscription's group {group!r} {why}.")
    return f"$share/{group}/{prefix}/+/req/+"


def parse_request(topic: str, prefix: str = DEFAULT_PREFIX) -> tuple[str, str]:
    """Returns the device and model of a request topic.

    Raises:
        ProtocolError: another topic.
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
    """Returns why `level` cannot be one level of a topic; "" if it can."""
    if not level:
        return "is empty; give at least one character"
    if len(level) > _NAME_LIMIT_CHARACTERS:
        return f"has {len(level)} characters; a topic level here has at most {_NAME_LIMIT_CHARACTERS}"
    found = sorted(_REFUSED.intersection(level))
    if found:
        return f"contains {', '.join(map(repr, found))}, which MQTT topics reserve; leave it out"
    # Section 1.5.4 allows a broker to close the connection for these; surrogates are not UTF-8 at all.
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in level):
        return "contains control characters, which MQTT brokers may refuse; leave them out"
    return ""
