"""How much one message may ask for. Declared sizes are held against these before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds for one request or response; above one of them it is `PayloadTooLargeError`.

    Args:
        body_bytes: the whole body, after any Content-Encoding is undone.
        json_bytes: the JSON part. Parsed JSON takes up to 20 times its bytes, and its parsing stops every other
            request for some 20 ms a MiB at a time (the interpreter runs one thread); binary tensors take neither.
        elements: of all tensors of a message together.
        byte_elements: of all BYTES tensors together; each becomes an object of some 40 bytes.
        rows: of a request; its tensors' first axis.
        tensors: in a message, and outputs that a request may name.
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


DEFAULT_LIMITS = Limits()
