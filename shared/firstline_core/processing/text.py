"""Runs the text steps: decoding and normalising UTF-8, and tokenising with a file of the library `tokenizers`."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import InvalidTensorError, ModelLoadError, PayloadTooLargeError, missing_package
from firstline_core.processing.steps import DecodeText, Tokenize
from firstline_core.types import Array, Tensor, object_array

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

TEXT_LIMIT_BYTES = 1 << 20
"""Of one text."""

TOTAL_LIMIT_BYTES = 8 << 20
"""Of all texts of a request: a second or two of one core."""

MARKS_LIMIT = 30
"""Combining marks in a row, of a text that is normalised: Unicode's stream-safe text format (UAX #15, section 13)."""

_MARKS_END = 0x20000  # no character from here on is a combining mark

_PARTS = {"ids": "ids", "mask": "attention_mask", "types": "type_ids"}
_PAD_TOKENS = ("[PAD]", "<pad>", "<PAD>", "<|pad|>")


Shared = dict[Hashable, Any]
"""Results that the inputs of a model share while one request is prepared, by what computed them."""


class TextEncoder(NamedTuple):
    """A tokenizer.

    Attributes:
        encode: of one text.
        pad_id: number of the padding.
    """

    encode: Callable[[str], Encoding]
    pad_id: int


class Tokens(NamedTuple):
    """How a text becomes numbers.

    Attributes:
        step: of the model.
        encoder: its tokenizer. Inputs with the same one, such as ids and mask, tokenise a text once.
    """

    step: Tokenize
    encoder: TextEncoder


class TextProcessing:
    """The text steps of a model, from BYTES (rows,) to texts (rows,), or INT64 (rows, tokens).

    Args:
        decode: how texts are decoded and normalised.
        tokens: None if the model takes texts.
    """

    def __init__(self, decode: DecodeText, tokens: Tokens | None) -> None:
        self._decode = decode
        self._tokens = tokens

    def run(self, tensor: Tensor, shared: Shared) -> Array:
        """Runs the steps.

        Args:
            tensor: encoded texts.
            shared: of the request.

        Raises:
            InvalidTensorError: a row that is not UTF-8, or has more tokens than the model takes.
            PayloadTooLargeError: a text over a limit.
        """
        if self._tokens is None:
            return object_array(self._texts(tensor))
        step, encoder = self._tokens
        key = tensor.name, self._decode, id(encoder)
        if key not in shared:
            # One after the other: the library's batches would take all cores.
            shared[key] = [encoder.encode(text) for text in self._texts(tensor)]
        return _rows(step, shared[key], encoder.pad_id, tensor.name)

    def _texts(self, tensor: Tensor) -> list[str]:
        total, texts = 0, list[str]()
        for row, element in enumerate(tensor.array):
            where = f"Row {row} of input '{tensor.name}'"
            _check_bytes(element, where)
            total += len(element)
            if len(element) > TEXT_LIMIT_BYTES or total > TOTAL_LIMIT_BYTES:
                raise PayloadTooLargeError(
                    f"{where} has {len(element)} bytes of text, {total} with the rows before it; at most "
                    f"{TEXT_LIMIT_BYTES} are accepted, and {TOTAL_LIMIT_BYTES} in a request."
                )
            texts.append(decode(element, self._decode, where))
        return texts


def decode(encoded: bytes, step: DecodeText, where: str) -> str:
    """Decodes and normalises one text.

    Args:
        encoded: UTF-8; a byte order mark at the start is dropped.
        step: the normalisation.
        where: the row, for messages.

    Raises:
        InvalidTensorError: not UTF-8, or more combining marks in a row than are normalised.
    """
    text = _decoded(encoded, where)
    if step.form:
        # Marks are sorted in quadratic time.
        if not text.isascii() and _longest_marks(text) > MARKS_LIMIT:
            raise InvalidTensorError(f"{where} has more than {MARKS_LIMIT} combining marks in a row; remove some.")
        text = unicodedata.normalize(step.form, text)
    if step.lower:
        text = text.lower()
    return text.strip() if step.strip else text


def check_encoding(encoded: bytes, where: str) -> None:
    """Checks that a text is UTF-8.

    Raises:
        InvalidTensorError: it is not.
    """
    _check_bytes(encoded, where)
    _decoded(encoded, where)


def _check_bytes(element: object, where: str) -> None:
    if not isinstance(element, bytes):
        raise InvalidTensorError(f"{where} is of type {type(element).__name__}; text is bytes in UTF-8.")


def _decoded(encoded: bytes, where: str) -> str:
    try:
        return encoded.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidTensorError(
            f"{where} is not UTF-8 text: byte {error.start} is {encoded[error.start]:#04x}."
        ) from error


def _longest_marks(text: str) -> int:
    """Returns the most combining marks that follow each other; in linear time."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    others = np.flatnonzero(~_is_mark()[np.minimum(points, _MARKS_END)])
    return int(np.diff(others, prepend=-1, append=len(points)).max()) - 1


@lru_cache(maxsize=1)
def _is_mark() -> NDArray[np.bool_]:
    """Returns whether each code point is normalised to nothing but combining marks."""
    normalised = [unicodedata.normalize("NFKD", chr(point)) for point in range(_MARKS_END + 1)]
    return np.array([all(unicodedata.combining(part) for part in parts) for parts in normalised])


def read_encoder(step: Tokenize, content: bytes) -> TextEncoder:
    """Returns a tokenizer whose truncation and padding are those of the step, whatever the file says.

    Args:
        step: the step.
        content: of its file.

    Raises:
        ModelLoadError: the library is not installed, or the file is not a tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing_package(error, "A model that takes tokens", "text", ModelLoadError) from error
    try:
        tokenizer: Tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises no other type
        raise ModelLoadError(f"{step.artefact.file} is not a file of tokenizers: {error}.") from error
    pad_id = _pad_id(tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if step.truncate:
        tokenizer.enable_truncation(step.length)
    return TextEncoder(tokenizer.encode, pad_id)


def _rows(step: Tokenize, encodings: Sequence[Encoding], pad_id: int, name: str) -> NDArray[np.int64]:
    for row, encoding in enumerate(encodings):
        if len(encoding.ids) > step.length:
            raise InvalidTensorError(
                f"Row {row} of input '{name}' has {len(encoding.ids)} tokens; this model takes {step.length}. "
                "Send a shorter text."
            )
    length = step.length if step.padding == "length" else max(1, *(len(encoding.ids) for encoding in encodings))
    rows = np.full((len(encodings), length), pad_id if step.part == "ids" else 0, np.int64)
    for row, encoding in enumerate(encodings):
        values: Sequence[int] = getattr(encoding, _PARTS[step.part])
        rows[row, : len(values)] = values
        if not values and step.part == "mask":
            rows[row, 0] = 1  # models divide by the number of tokens
    return rows


def _pad_id(tokenizer: Tokenizer) -> int:
    """Returns the id of the padding: of the file's padding, else of a usual token, else 0."""
    if tokenizer.padding is not None:
        return int(tokenizer.padding["pad_id"])
    found = (tokenizer.token_to_id(token) for token in _PAD_TOKENS)
    return next((number for number in found if number is not None), 0)
