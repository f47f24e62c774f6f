"""The subject of a rollout: a version of a bundle, or of a configuration; where that makes a difference.

Inside, both are a `DesiredModel`: a name, a version and a digest, with the same words about when and whether. A device
runs several bundles and one configuration, so that a word about a configuration takes the place of any other.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec.structs import replace

from firstline_core.fleet.twin import Desired, DesiredConfiguration, DesiredModel, Reported, Update


class Subject(StrEnum):
    """The words are those of `twin.Update.what`."""

    MODEL = "model"
    CONFIGURATION = "configuration"


def desired_of(said: Desired, subject: Subject, name: str) -> DesiredModel | None:
    """The fleet's word to a device: about a bundle of this name, or about its configuration, whichever that is."""
    if subject is Subject.MODEL:
        return next((each for each in said.models if each.name == name), None)
    held = said.configuration
    if held is None:
        return None
    return DesiredModel(
        held.name,
        held.version,
        held.sha256,
        held.rollout,
        not_before_s=held.not_before_s,
        expires_s=held.expires_s,
        window=held.window,
        attempt=held.attempt,
        undone=held.undone,
        withdrawn=held.withdrawn,
    )


def with_word(said: Desired, subject: Subject, word: DesiredModel) -> Desired:
    """A device's document with another such word."""
    if subject is Subject.MODEL:
        others = tuple(each for each in said.models if each.name != word.name)
        return replace(said, models=tuple(sorted((*others, word), key=lambda each: each.name)))
    configuration = DesiredConfiguration(
        word.name,
        word.version,
        word.manifest_sha256,
        word.rollout,
        not_before_s=word.not_before_s,
        expires_s=word.expires_s,
        window=word.window,
        attempt=word.attempt,
        undone=word.undone,
        withdrawn=word.withdrawn,
    )
    return replace(said, configuration=configuration)


def version_of(reported: Reported | None, subject: Subject, name: str) -> int:
    """The version that runs on a device, as it says; 0 where it does not say, or another one's runs."""
    if reported is None:
        return 0
    if subject is Subject.CONFIGURATION:
        return reported.configuration if reported.configuration_name == name else 0
    return next((each.version for each in reported.models if each.name == name), 0)


def update_of(reported: Reported | None, subject: Subject, name: str) -> Update | None:
    """How the latest update stands on a device, as it says."""
    said = reported.updates if reported is not None else ()
    return next((each for each in said if each.name == name and each.what == subject), None)
