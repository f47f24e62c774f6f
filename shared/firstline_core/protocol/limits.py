"""Limits of one message. Declared sizes are checked against them before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.errors import PayloadTooLargeError
from firstline_core.units import MIB


@dataclass(frozen=True, slots=True)
class DecodingLimits:
    """Upper bounds for one encoded image or recording, checked by its header; above one: `PayloadTooLargeError`.

    Args:
        pixels: width times height of an image.
        side: the longer side of an image, in pixels.
        memory_bytes: estimate of the most memory that decoding and the image steps hold at one moment.
    """

    pixels: int = 64_000_000
    side: int = 65_500
    memory_bytes: int = 256 * MIB


DEFAULT_DECODING_LIMITS = DecodingLimits()


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds for one request or response; above one of them it is `PayloadTooLargeError`.

    Args:
        body_bytes: the whole body, after any Content-Encoding is undone.
        json_bytes: the JSON part. Parsed JSON takes up to 20 times its size, and parsing blocks all other requests for
            about 20 ms per MiB (the interpreter runs one thread). Binary tensors do not have these costs.
        elements: of all tensors of a message together.
        byte_elements: of all BYTES tensors together; each becomes an object of some 40 bytes.
        rows: of a request: the first axis of its tensors.
        tensors: in a message, and requested outputs.
        dimensions: of one tensor.
        id_chars: of the caller's `id`, which is echoed and logged.
    """

    body_bytes: int = 64 * MIB
    json_bytes: int = 8 * MIB
    elements: int = 64 * MIB
    byte_elements: int = 1 * MIB
    rows: int = 4096
    tensors: int = 64
    dimensions: int = 16
    id_chars: int = 256

    def check_body(self, size_bytes: int) -> None:
        """Refuses a body that is too large.

        Args:
            size_bytes: of the whole body, or of the part that is known so far.

        Raises:
            PayloadTooLargeError: more than `body_bytes`.
        """
        if size_bytes > self.body_bytes:
            raise PayloadTooLargeError(f"The body is larger than {self.body_bytes} bytes, the most that is accepted.")


DEFAULT_LIMITS = Limits()
