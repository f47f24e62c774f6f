"""The persons on whose behalf a console sends requests: names, roles, and the header that carries them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

PERSON_HEADER = "Firstline-Person"
"""JSON of a `Person`; only a key with the scope `delegate` may send it."""
SIGN_INS_PATH = "/fleet/v1/sign-ins"
"""POST a `SignIn`: an entry of the audit log."""

PersonName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}\Z")]
_VIA = " via "


class Role(StrEnum):
    """The permissions of a person."""

    VIEWER = "viewer"
    """Read."""
    OPERATOR = "operator"
    """Also change, except for what an approver decides."""
    APPROVER = "approver"
    """Also approve and promote rollouts, and end alarms."""


class Person(Struct, frozen=True, forbid_unknown_fields=True):
    """A person who signed in to a console.

    Attributes:
        name: unique, such as an email address.
        role: permissions of the person.
        devices: selector of the devices that the person sees and changes; "" for all.
    """

    name: PersonName
    role: Role
    devices: Annotated[str, Meta(max_length=1024)] = ""


class SignIn(Struct, frozen=True, forbid_unknown_fields=True):
    """An attempt to sign in to a console.

    Attributes:
        person: the name that was given.
        method: "password" or "oidc".
        address: of the browser.
        refused: the reason; "" if the person was let in.
    """

    person: Annotated[str, Meta(max_length=64)]
    method: Annotated[str, Meta(max_length=16)]
    address: Annotated[str, Meta(max_length=64)] = ""
    refused: Annotated[str, Meta(max_length=256)] = ""


def acting(person: str, key: str) -> str:
    """Returns the actor of the audit log: the person, if there is one, and the key."""
    return f"{person}{_VIA}{key}" if person else key


def person_and_key(actor: str) -> tuple[str, str]:
    """Returns the person of an actor, "" without one, and its key."""
    person, via, key = actor.rpartition(_VIA)
    return (person, key) if via else ("", actor)


def same_person(one: str, other: str) -> bool:
    """Returns whether two actors are the same person, or the same key without a person."""
    return (person_and_key(one)[0] or one) == (person_and_key(other)[0] or other)
