"""What may name a bundle, a model, a device or a token: text that is safe in paths, MQTT topics and logs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

# \Z, because $ also matches before a newline at the end.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
