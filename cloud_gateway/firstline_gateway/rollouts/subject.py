"""The subject of a rollout: a version of a bundle, or of a configuration; where that makes a difference.

Inside, both are a `DesiredModel`: a name, a version and a digest, with the same words about when and whether. A device
runs several bundles and one configuration, so that a word about a configuration takes the place of any other.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec.structs import asdict, replace

from firstline_core.fleet.twin import Desired, DesiredConfiguration, DesiredModel, DesiredVersion, Reported, Update


class Subject(StrEnum):
    """The words are those of `twin.Update.what`."""

    MODEL = "model"
    CONFIGURATION = "configuration"


def desired_of(document: Desired, subject: Subject, name: str) -> DesiredVersion | None:
    """Returns the desired version of a bundle with this name, or of the device's configuration, whatever its name."""
    if subject is Subject.CONFIGURATION:
        return document.configuration
    return next((each for each in document.models if each.name == name), None)


def with_desired(document: Desired, subject: Subject, version: DesiredVersion) -> Desired:
    """Returns a device's document with another desired version."""
    if subject is Subject.CONFIGURATION:
        return replace(document, configuration=DesiredConfiguration(**asdict(version)))
    others = tuple(each for each in document.models if each.name != version.name)
    models = (*others, DesiredModel(**asdict(version)))
    return replace(document, models=tuple(sorted(models, key=lambda each: each.name)))


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
