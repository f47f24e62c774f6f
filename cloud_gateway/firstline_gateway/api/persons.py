"""The permissions of a person who signed in to a console: the role, and the devices that the person sees and changes.

A person without a selector of devices is limited by the role alone. A person with one sees and changes these devices,
and rollouts whose selector contains all of its parts. Sums over the whole fleet, such as the audits of contracts and
answers by tier, are readable, without the names of other devices.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping

import msgspec
from fastapi import Request

from firstline_core.errors import ForbiddenError, RequestError
from firstline_core.fleet.persons import PERSON_HEADER, Person, Role
from firstline_core.fleet.rest import CONTRACTS_PATH, DEVICES_PATH
from firstline_core.fleet.rollout_documents import AUDIT_PATH, PLAN_PATH, ROLLOUTS_PATH
from firstline_core.fleet.selector import parse_selector
from firstline_core.protocol import enrolment
from firstline_core.protocol.extensions import INDEX_PATH
from firstline_core.storage.structs import fault_of

Tags = Callable[[str], Awaitable[Mapping[str, str]]]
"""Returns the tags of a device; none for an unknown device."""

READS = ("GET", "HEAD")
_HEADER = PERSON_HEADER.lower()
# Requests with a body that change nothing.
_READS_BY_POST = (PLAN_PATH, INDEX_PATH)
_DECISIONS = ("approve", "promote")


def person_of(request: Request) -> Person | None:
    """Returns the person on whose behalf a request is sent; None without one.

    Raises:
        RequestError: the header is not valid.
    """
    text = request.headers.get(PERSON_HEADER)
    if text is None:
        return None
    try:
        person = msgspec.json.decode(text.encode("latin-1"), type=Person)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestError(
            f"The header {PERSON_HEADER} is not valid: {fault_of(error)}; send the JSON that a console sends."
        ) from error
    parse_selector(person.devices)
    return person


def check_none(headers: Container[str]) -> None:
    """Checks that a request for inference, or over gRPC, names no person: no role includes it.

    Args:
        headers: names of the headers, or of the metadata, in lower case.

    Raises:
        ForbiddenError: it names one.
    """
    if _HEADER in headers:
        raise ForbiddenError(
            f"Requests for inference and over gRPC act for no person; leave out the header {PERSON_HEADER}."
        )


async def check(person: Person, request: Request, tags_of: Tags) -> None:
    """Checks that a person may send a request.

    Raises:
        ForbiddenError: the person may not.
    """
    path: str = request.scope["route"].path  # not the request's, which may end in a line break
    reads = request.method in READS or path in _READS_BY_POST
    if not reads and person.role is Role.VIEWER:
        raise ForbiddenError(f"{person.name} is a viewer and may not change anything; ask for the role operator.")
    decides = request.path_params.get("command") in _DECISIONS or path.startswith(CONTRACTS_PATH)
    if not reads and decides and person.role is not Role.APPROVER:
        raise ForbiddenError(f"{person.name} is an {person.role} and may not decide this; ask for the role approver.")
    if not person.devices:
        return
    if path.startswith((DEVICES_PATH, enrolment.DEVICES_PATH)) and "name" in request.path_params:
        await _check_device(person, request.path_params["name"], tags_of)
    elif path.startswith(AUDIT_PATH):
        kind, _, name = request.query_params.get("subject", "").partition(":")
        if path != AUDIT_PATH or kind not in ("device", "rollout"):
            raise ForbiddenError(
                f"{person.name} sees the audit log of single devices and rollouts only; name one with `subject`."
            )
        if kind == "device":  # the route reads the selector of a rollout
            await _check_device(person, name, tags_of)
    elif path == enrolment.DEVICES_PATH or not (reads or path.startswith(ROLLOUTS_PATH)):
        raise ForbiddenError(f"{person.name} may change devices with {person.devices} only; this concerns others too.")


async def _check_device(person: Person, name: str, tags_of: Tags) -> None:
    if not await sees(person, tags_of, name):
        raise ForbiddenError(f"{person.name} sees devices with {person.devices} only, and not {name[:64]!a}.")


async def sees(person: Person | None, tags_of: Tags, name: str) -> bool:
    """Returns whether a person sees a device; without a person, all are seen."""
    if person is None or not person.devices:
        return True
    return parse_selector(person.devices).matches(await tags_of(name))


def sees_rollout(person: Person | None, selector: str) -> bool:
    """Returns whether all devices of a rollout, given by its selector, are devices of the person."""
    if person is None or not person.devices:
        return True
    return set(parse_selector(person.devices).parts) <= set(parse_selector(selector).parts)


def check_rollout(person: Person | None, selector: str) -> None:
    """Checks that all devices of a rollout are devices of the person.

    Raises:
        ForbiddenError: the rollout may select other devices.
    """
    if person is not None and not sees_rollout(person, selector):
        raise ForbiddenError(
            f"{person.name} sees and changes rollouts to devices with {person.devices} only; the rollout's selector "
            "must contain that."
        )
