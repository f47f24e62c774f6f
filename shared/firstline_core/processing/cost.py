"""The cost of preparing the inputs of a request, and inputs that carry their cost or the result. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from firstline_core.processing.audio_header import MeasuredClip
from firstline_core.processing.image_header import MeasuredImage
from firstline_core.types import Array, Arrays

LIGHT_PIXELS, _LIGHT_S = 65_536, 0.001
"""Number of pixels of which the decoding takes a millisecond at most, and that time."""

_OF_RUN = 4.0  # decoding time that images may take, as a multiple of the model's run

_OVERHEAD_PIXELS = 8192  # are decoded in the time that reading a file of any size takes

_FILE_BYTES = 16  # of a light image for each of its pixels; an uncompressed one of 16 bits a channel has 8

LIGHT_BYTES = 16 * 1024 * 1024
"""Working memory that is not counted: many tiny images become large ones when they are resized."""

MeasuredFile = MeasuredImage | MeasuredClip


class DecodingCost(Struct, frozen=True):
    """The cost of processing the inputs of a request: images, audio clips and numbers.

    Args:
        files: of each of the model's inputs, each row that is decoded, see `LoadedInput.measure`.
        numbers_bytes: the most memory that the steps of inputs of numbers hold.
    """

    files: tuple[tuple[MeasuredFile, ...], ...] = ()
    numbers_bytes: int = 0

    @property
    def rows(self) -> Sequence[MeasuredFile]:
        """Returns the cost of each row of each input; nothing if there is nothing to process."""
        return [row for rows in self.files for row in rows]

    @property
    def pixels(self) -> int:
        """Pixels of all rows, as they were sent; of audio, the number of pixels that takes as long to decode."""
        return sum([row.header.pixels for row in self.rows])

    @property
    def encoded_bytes(self) -> int:
        """Bytes of the files of all images."""
        return sum([row.encoded_bytes for row in self.rows])

    @property
    def memory_bytes(self) -> int:
        """The most that is held at one moment while the rows are processed one after the other."""
        rows = self.rows
        largest = max([row.working_bytes for row in rows], default=0)
        results = sum([row.result_bytes for row in rows]) if len(rows) > 1 else 0
        return largest + results + self.numbers_bytes

    def take(self, rows: Sequence[int]) -> DecodingCost:
        """Returns the cost of some of the rows, in the given order; of numbers, at most the cost of all rows."""
        files = [tuple([each[row] for row in rows]) if each else () for each in self.files]
        return DecodingCost(tuple(files), self.numbers_bytes)


NO_COST = DecodingCost()


class PreparedRows(dict[str, Array]):
    """The rows that a model's preprocessing returned for a request, in place of its inputs; by the model's inputs.

    Args:
        rows: the model's inputs by name.
        sent: the inputs of the request, for servers that preprocess them themselves; None for rows of several requests.
    """

    def __init__(self, rows: Arrays, sent: Arrays | None = None) -> None:
        super().__init__(rows)
        self.sent = sent


class MeasuredInputs(dict[str, Array]):
    """The inputs of a request with the cost of their images, so that their headers are read once.

    Args:
        inputs: by name.
        cost: of these inputs.
    """

    def __init__(self, inputs: Arrays, cost: DecodingCost) -> None:
        super().__init__(inputs)
        self.cost = cost


def as_sent(inputs: Arrays) -> Arrays:
    """Returns a request's inputs as they came, whether they were prepared here or not."""
    return inputs.sent or inputs if isinstance(inputs, PreparedRows) else inputs


def is_light(cost: DecodingCost, row_s: float = 0.0) -> bool:
    """Returns whether images are decoded where their model runs.

    A model that runs in threads for longer than its images take is not delayed much by them. Decoded in another thread,
    they would cost more: the interpreter's lock changes hands, and pixels leave the processor's cache.

    Args:
        cost: of the images.
        row_s: seconds of the model's run of a row; 0 if it runs on an event loop, or is not measured.
    """
    rows = len(cost.rows)
    pixels = cost.pixels + _OVERHEAD_PIXELS * (rows - 1)
    most = LIGHT_PIXELS * max(1.0, _OF_RUN * row_s * rows / _LIGHT_S)
    return pixels <= most and cost.encoded_bytes <= _FILE_BYTES * most and cost.memory_bytes <= LIGHT_BYTES
