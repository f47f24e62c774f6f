"""The sections of settings that both tiers have."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS, DecodingLimits

Positive = Annotated[int, Meta(ge=1)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; an unknown key is an error."""


class DecodingBounds(Section, frozen=True, kw_only=True):
    pixels_limit: Positive = DEFAULT_DECODING_LIMITS.pixels
    """Most pixels of one image; it is refused by its header, before it is decoded."""
    side_limit: Positive = DEFAULT_DECODING_LIMITS.side
    """Most pixels of a side of an image."""
    memory_limit_bytes: Positive = DEFAULT_DECODING_LIMITS.memory_bytes
    """Most working memory of one image or recording: decoding, conversions and steps, by its header."""

    @property
    def limits(self) -> DecodingLimits:
        """The limits of one image or recording."""
        return DecodingLimits(self.pixels_limit, self.side_limit, self.memory_limit_bytes)


class Tracing(Section, frozen=True, kw_only=True):
    endpoint: Annotated[str, Meta(pattern="^(https?://.+)?$")] = ""
    """URL of an OpenTelemetry collector (OTLP over HTTP), such as "http://localhost:4318"; "" exports no spans."""
    sample: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Share of the requests without a trace that begin one (0 to 1); the caller decides about all others."""


class Log(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines that are written: debug, info, warning or error. Lines about requests are "info"."""
    format: Literal["text", "json"] = "text"
    """"text" for people, "json" for collectors; to stderr."""
