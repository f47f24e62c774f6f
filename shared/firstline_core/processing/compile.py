"""Compiles a model's declared steps into one function when the model is loaded.

`images.py` runs the image steps, `audio.py` the audio steps; their results are stacked, and the other steps run on the
whole batch. Numbers that the postprocessing needs, such as where a picture was placed, travel with the prepared rows as
arrays of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firstline_core import errors
from firstline_core.processing import steps as ops
from firstline_core.processing.geometry import GEOMETRY
from firstline_core.processing.memory import steps_memory
from firstline_core.processing.signals import compile_signal
from firstline_core.processing.standardize import OBSERVED, STANDARDIZATION, in_units_of, split_observed, standardize
from firstline_core.processing.text import Shared, TextEncoder, TextProcessing, Tokens
from firstline_core.processing.windows import WINDOWS
from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS, DecodingLimits
from firstline_core.types import Array, Arrays, Tensor

if TYPE_CHECKING:
    from firstline_core.processing.audio import AudioProcessing
    from firstline_core.processing.images import ImageProcessing

_FLOAT = np.dtype(np.float32)

ArrayFunction = Callable[[Array], Array]
GraphLoader = Callable[[ops.Graph], ArrayFunction]

_LATER_BYTES = 8  # of each value in the steps after the image steps: FP32, and a copy in another layout


_MISSING = {
    GEOMETRY: "Preprocessing: boxes and masks are mapped back to images, so it needs decode or resize.",
    STANDARDIZATION: "Preprocessing: unstandardize and a tolerance in units of the scale need standardize as the first "
    "step.",
    OBSERVED: "Preprocessing: residual compares a forecast with what was observed, so it needs observed as the first "
    "step.",
}


class Prepared(NamedTuple):
    """The result of a preprocessing.

    Attributes:
        rows: of the model's input.
        side: arrays of the same rows that the postprocessing needs, by name.
    """

    rows: Array
    side: Arrays


class Preprocess(NamedTuple):
    """A model's preprocessing.

    Attributes:
        array_steps: on the whole batch, after the image or audio steps.
        images: the image steps, if there are any.
        standardizes: whether the first step is `standardize`, but for `observed`.
        audio: the audio steps, if there are any.
        windows: the last of the audio steps, if clips are cut into windows.
        text: the text steps, if there are any.
        observed: number of the last numbers of each row that the model does not see.
        steps: on numbers, of inputs that are numbers.
        memory_bytes: the most that they may hold.
    """

    array_steps: ArrayFunction
    images: ImageProcessing | None = None
    standardizes: bool = False
    audio: AudioProcessing | None = None
    windows: ops.Windows | None = None
    text: TextProcessing | None = None
    observed: int = 0
    steps: Sequence[ops.PreStep] = ()
    memory_bytes: int = DEFAULT_DECODING_LIMITS.memory_bytes

    @property
    def decoder(self) -> ImageProcessing | AudioProcessing | None:
        """Returns the processing of encoded rows; None if the input is numbers."""
        return self.images or self.audio

    def run(
        self,
        tensor: Tensor,
        costs: Sequence[Any] | None = None,
        needs: Collection[str] = (),
        shared: Shared | None = None,
    ) -> Prepared:
        """Prepares a bundle input.

        Args:
            tensor: a checked bundle input.
            costs: from `decoder.check_and_measure`, of this tensor; None to read the headers now.
            needs: names of the side arrays, that it `gives`: `GEOMETRY`, `STANDARDIZATION` and `OBSERVED`.
            shared: with the other inputs of the model, of this request.

        Returns:
            (rows, ...); with `windows` (rows, windows, ...), and `WINDOWS` as a side array.
        """
        array = tensor.array
        side: dict[str, Array] = {}
        if (decoder := self.decoder) is not None:
            measured: Sequence[Any] = decoder.check_and_measure(tensor) if costs is None else costs
            array = decoder.run(tensor, measured)
            if self.images is not None and GEOMETRY in needs:
                side[GEOMETRY] = self.images.geometry(tensor, measured)
            if self.windows is not None:
                done = self.array_steps(array.reshape(-1, *array.shape[2:]))
                counts = np.array([clip.windows for clip in measured], np.int64)
                return Prepared(done.reshape(*array.shape[:2], *done.shape[1:]), {WINDOWS: counts})
        elif self.text is not None:
            array = self.text.run(tensor, {} if shared is None else shared)
        elif self.steps:
            self._check_memory(tensor)
        if self.observed:
            array, side[OBSERVED] = split_observed(array, self.observed)
        if self.standardizes:
            array, side[STANDARDIZATION] = standardize(array)
            if self.observed:
                side[OBSERVED] = in_units_of(side[OBSERVED], side[STANDARDIZATION])
        return Prepared(self.array_steps(array), side)

    def _check_memory(self, tensor: Tensor) -> None:
        """Refuses rows whose steps would hold too much memory.

        Raises:
            PayloadTooLargeError: as said.
        """
        rows, *shape = tensor.array.shape
        if (total_bytes := self.steps_bytes(tensor.array.shape)) > self.memory_bytes:
            raise errors.PayloadTooLargeError(
                f"Input '{tensor.name}' has {rows} rows of shape {shape}, whose steps take {total_bytes} bytes of "
                f"memory; at most {self.memory_bytes} are used (decoding.memory_limit_bytes). Send fewer or shorter "
                "rows."
            )

    def steps_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the most memory that the steps on numbers of this shape hold; 0 for files and texts."""
        rows, *row_shape = shape
        memory = steps_memory(self.steps, tuple(row_shape))
        return rows * memory.row_bytes + memory.once_bytes

    def gives(self, side: str) -> bool:
        """Returns whether `run` can give this side array."""
        given = {GEOMETRY: self.images is not None, STANDARDIZATION: self.standardizes, OBSERVED: self.observed > 0}
        return given[side]


def check_needs(inputs: Sequence[Preprocess], needs: Collection[str]) -> None:
    """Checks that exactly one of a model's inputs gives each side array.

    Raises:
        ModelLoadError: a step is missing, or several inputs have it.
    """
    for side in needs:
        givers = sum(each.gives(side) for each in inputs)
        if givers == 0:
            raise errors.ModelLoadError(_MISSING[side])
        if givers > 1:
            raise errors.ModelLoadError(
                f"Preprocessing: {givers} inputs have the steps that the postprocessing refers to; one may have them."
            )


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise errors.ModelLoadError(f"Preprocessing: {rule}")


def _no_encoder(step: ops.Tokenize) -> TextEncoder:
    raise errors.ModelLoadError(f"{step.artefact.file} is absent.")


def compile_preprocess(
    steps: Sequence[ops.PreStep],
    spec: ops.InputSpec,
    load_graph: GraphLoader,
    limits: DecodingLimits = DEFAULT_DECODING_LIMITS,
    load_encoder: Callable[[ops.Tokenize], TextEncoder] = _no_encoder,
) -> Preprocess:
    """Returns a model's preprocessing.

    Args:
        steps: in order; image steps come before all others.
        spec: the bundle's input.
        load_graph: returns the function of a graph step.
        limits: of one image or clip.
        load_encoder: returns the tokenizer of a step.

    Raises:
        ModelLoadError: the steps do not fit each other or this input, or a package that they need is not installed.
    """
    if any(isinstance(step, ops.AudioStep) for step in steps):
        return _compile_audio(steps, spec, load_graph, limits)
    if spec.kind == "text" or any(isinstance(step, ops.TextStep) for step in steps):
        return _compile_text(steps or (ops.DecodeText(),), spec, load_encoder)
    _require(spec.kind != "audio", f"input '{spec.name}' is encoded audio, so decode_audio comes first.")
    if spec.kind == "image" or any(isinstance(step, ops.ImageStep) for step in steps):
        return _compile_images(steps, spec, load_graph, limits)
    return _compile_numbers(steps, spec, load_graph, limits)


def _compile_images(
    steps: Sequence[ops.PreStep], spec: ops.InputSpec, load_graph: GraphLoader, limits: DecodingLimits
) -> Preprocess:
    """Returns the preprocessing of encoded images or pixels; see `compile_preprocess`."""
    image_steps = [step for step in steps if isinstance(step, ops.ImageStep)]
    array_steps = [step for step in steps if not isinstance(step, ops.ImageStep)]
    ordered = list(steps) == [*image_steps, *array_steps]
    _require(ordered, "decode, center_crop and resize come before scale, layout, flatten and graph.")
    decode = next((step for step in image_steps if isinstance(step, ops.Decode)), None)
    size_steps = tuple([step for step in image_steps if not isinstance(step, ops.Decode)])
    first = decode is None or image_steps == [decode, *size_steps]
    _require(first, "decode must be the first step, and occur once, such as decode:L,resize:8x8.")
    what = f"input '{spec.name}' is"
    _require(spec.kind != "image" or decode is not None, f"{what} an encoded image, so decode comes first.")
    _require(
        spec.kind == "image" or spec.datatype == "UINT8",
        f"{what} of kind {spec.kind}, {spec.datatype}; image steps need an image or UINT8.",
    )
    signals = any(isinstance(step, ops.SignalStep) for step in array_steps)
    _require(not signals, "steps for signals take numbers that are no image.")
    channels = spec.shape[-1] if decode is None else ops.CHANNELS[decode.mode]
    functions = _array_steps(array_steps, channels, load_graph)
    from firstline_core.processing.images import ImageProcessing  # Pillow takes 3 MB: import it only for images

    images = ImageProcessing(decode, size_steps, limits, _LATER_BYTES if array_steps else 0)
    return Preprocess(compose(functions), images)


def _compile_numbers(
    steps: Sequence[ops.PreStep], spec: ops.InputSpec, load_graph: GraphLoader, limits: DecodingLimits
) -> Preprocess:
    """Returns the preprocessing of numbers; see `compile_preprocess`."""
    observed = steps[0].samples if steps and isinstance(steps[0], ops.Observed) else 0
    rest = steps[1:] if observed else steps
    standardizes = bool(rest) and isinstance(rest[0], ops.Standardize)
    return Preprocess(
        compose(_array_steps(rest[standardizes:], spec.shape[-1], load_graph)),
        standardizes=standardizes,
        observed=observed,
        steps=tuple(steps),
        memory_bytes=limits.memory_bytes,
    )


def _compile_audio(
    steps: Sequence[ops.PreStep], spec: ops.InputSpec, load_graph: GraphLoader, limits: DecodingLimits
) -> Preprocess:
    """Returns the preprocessing of encoded audio; see `compile_preprocess`."""
    audio = [step for step in steps if isinstance(step, ops.AudioStep)]
    others = [step for step in steps if not isinstance(step, ops.AudioStep)]
    kinds = [type(step) for step in audio]
    images = any(isinstance(step, ops.ImageStep) for step in others)
    _require(
        list(steps) == [*audio, *others] and not images,
        "audio steps come before scale, flatten and graph, and do not go with image steps.",
    )
    decodes = kinds[0] is ops.DecodeAudio and spec.datatype == "BYTES"
    _require(decodes, "audio steps start with decode_audio, of an input of type BYTES.")
    one_rate = kinds.count(ops.Resample) == 1
    _require(one_rate, "decode_audio needs one resample:RATE, the sample rate that the model was made for.")
    for kind in (ops.DecodeAudio, ops.Mono, ops.Windows):
        _require(kinds.count(kind) <= 1, f"{kind.__struct_config__.tag} comes once.")
    early = {ops.Crop, ops.Pad, ops.Windows} & {*kinds[: kinds.index(ops.Resample)]}
    _require(not early, "resample comes before crop, pad and windows, which count its samples.")
    windows = [step for step in audio if isinstance(step, ops.Windows)]
    _require(not windows or audio[-1] is windows[0], "windows is the last of the audio steps.")
    try:
        from firstline_core.processing.audio import AudioProcessing
    except ModuleNotFoundError as error:
        raise errors.missing_package(error, "A model that takes audio files", "audio", errors.ModelLoadError) from error
    later = any(isinstance(step, ops.Standardize) for step in others[1:])
    _require(not later, "standardize comes first after the audio steps, and once.")
    standardizes = bool(others) and isinstance(others[0], ops.Standardize)
    first: list[ArrayFunction] = [lambda array: standardize(array)[0]] if standardizes else []
    return Preprocess(
        compose(first + _array_steps(others[standardizes:], 1 if ops.Mono in kinds else -1, load_graph)),
        audio=AudioProcessing(audio, limits, others),
        windows=next(iter(windows), None),
    )


def _compile_text(
    steps: Sequence[ops.PreStep], spec: ops.InputSpec, load_encoder: Callable[[ops.Tokenize], TextEncoder]
) -> Preprocess:
    """Returns the preprocessing of texts; see `compile_preprocess`."""
    tokens = None
    match steps:
        case [ops.DecodeText() as decode]:
            pass
        case [ops.DecodeText() as decode, ops.Tokenize() as tokenize]:
            tokens = Tokens(tokenize, load_encoder(tokenize))
        case _:
            raise errors.ModelLoadError("Preprocessing of text: decode_text comes first, then at most tokenize.")
    _require(spec.datatype == "BYTES", f"input '{spec.name}' is {spec.datatype}; decode_text needs BYTES.")
    return Preprocess(compose([]), text=TextProcessing(decode, tokens))


def compile_postprocess(steps: Sequence[ops.PostStep], load_graph: GraphLoader) -> ArrayFunction:
    """Returns the function of a postprocessing, from the output (n, ...) to a matrix (n, columns) float32.

    Raises:
        ModelLoadError: a step belongs to another task.
    """
    functions: list[ArrayFunction] = [_to_float_matrix]
    for step in steps:
        match step:
            case ops.Softmax():
                functions.append(softmax)
            case ops.Sigmoid():
                functions.append(sigmoid)
            case ops.Columns():
                functions.append(_columns(step.indices))
            case ops.LabelOffset():
                functions.append(_drop_columns(step.offset))
            case ops.Binary():
                functions.append(_binary if step.of == "probability" else _binary_of_logit)
            case ops.Graph():
                functions += [load_graph(step), _to_float_matrix]
            case _:
                op = step.__struct_config__.tag
                raise errors.ModelLoadError(f"Postprocessing: {op} does not belong to this bundle's task.")
    return compose(functions)


def compose(functions: Sequence[ArrayFunction]) -> ArrayFunction:
    """Returns the composition of functions, in order."""
    match functions:
        case []:
            return lambda array: array
        case [only]:
            return only

    def apply(array: Array) -> Array:
        for function in functions:
            array = function(array)
        return array

    return apply


def softmax(logits: Array) -> NDArray[np.float32]:
    """Converts logits (n, classes) to probabilities, shifted by each row's maximum to avoid overflow."""
    shifted: NDArray[np.float32] = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= np.add.reduce(shifted, axis=-1, keepdims=True)
    return shifted


def sigmoid(logits: Array) -> NDArray[np.float32]:
    """Converts logits to probabilities, each by itself; without overflow, because tanh has none."""
    halves: NDArray[np.float32] = np.tanh(logits * np.float32(0.5)).astype(np.float32, copy=False)
    return halves * np.float32(0.5) + np.float32(0.5)


def _array_steps(steps: Sequence[ops.PreStep], channels: int, load_graph: GraphLoader) -> list[ArrayFunction]:
    functions: list[ArrayFunction] = []
    for position, step in enumerate(steps):
        match step:
            case ops.Scale():
                moved = any(
                    isinstance(before, ops.Layout | ops.Flatten | ops.Graph | ops.SignalStep)
                    for before in steps[:position]
                )
                functions.append(_scale(step, channels, moved=moved))
            case ops.Layout():
                if step.to == "NCHW":
                    functions.append(_to_channels_first)
            case ops.Flatten():
                functions.append(lambda array: array.reshape(len(array), -1))
            case ops.Detrend() | ops.Welch() | ops.BandEnergies() | ops.Envelope() | ops.Mel():
                functions.append(compile_signal(step))
            case ops.Graph():
                functions.append(load_graph(step))
            case ops.Observed() | ops.Standardize():
                op = step.__struct_config__.tag
                raise errors.ModelLoadError(
                    f"Preprocessing: {op} comes first, once, and takes numbers that are no image."
                )
            case _:
                raise errors.ModelLoadError(f"Preprocessing: {step.__struct_config__.tag} does not go with this input.")
    return functions


def _scale(step: ops.Scale, channels: int, *, moved: bool) -> ArrayFunction:
    """Returns (x - mean) / std over the last axis as a function, FP32."""
    mean, std = (np.asarray(values, np.float32) for values in (step.mean, step.std))
    finite = bool(np.isfinite(mean).all() and np.isfinite(std).all() and np.all(std != 0))
    _require(finite, "scale needs finite numbers, and no std of 0.")
    sizes = {mean.size, std.size}
    alike = 0 not in sizes and len(sizes - {1}) < 2
    _require(alike, f"scale has {mean.size} means and {std.size} stds; give one or one a channel.")
    wide = max(sizes)
    _require(wide == 1 or not moved, "scale by channel comes before layout, flatten, graph and steps for signals.")
    fits = wide == 1 or channels in (-1, wide)
    _require(fits, f"scale has {wide} channels, but the input has {channels}.")
    if wide == 1:  # scalars are faster than arrays of one
        divisor, shift = np.float32(std.item()), np.float32(mean.item())
        if shift == 0:
            return lambda array: np.divide(array, divisor, dtype=np.float32)
        return lambda array: _scaled(array, shift, divisor)

    def scale(array: Array) -> Array:
        if array.shape[-1] != wide:
            raise errors.InvalidTensorError(
                f"The input has {array.shape[-1]} channels, but the model is scaled for {wide}."
            )
        return _scaled(array, mean, std)

    return scale


def _scaled(array: Array, mean: Array | np.float32, std: Array | np.float32) -> Array:
    scaled = np.subtract(array, mean, dtype=np.float32)
    scaled /= std
    return scaled


def _to_channels_first(array: Array) -> Array:
    if array.ndim != 4:
        raise errors.InvalidTensorError(f"Layout NCHW needs [rows, height, width, channels], got {list(array.shape)}.")
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def _columns(indices: Sequence[int]) -> ArrayFunction:
    def select(array: Array) -> Array:
        if max(indices) >= array.shape[1]:
            raise errors.InferenceError(
                f"The step columns selects column {max(indices)}, but the output has {array.shape[1]}."
            )
        return array[:, list(indices)]

    return select


def _drop_columns(count: int) -> ArrayFunction:
    def drop(array: Array) -> Array:
        if count >= array.shape[1]:
            raise errors.InferenceError(
                f"The step label_offset drops {count} columns, but the output has {array.shape[1]}."
            )
        return array[:, count:]

    return drop


def _binary(positive: Array) -> Array:
    """Returns (n, 2) for (n, 1); more columns give more than two, which the check of the labels refuses."""
    return np.concatenate((1 - positive, positive), axis=1)


def _binary_of_logit(logit: Array) -> Array:
    return softmax(np.concatenate((np.zeros_like(logit), logit), axis=1))


def _to_float_matrix(output: Array) -> Array:
    if output.ndim == 2 and output.dtype is _FLOAT:
        return output
    rows = output.shape[0] if output.ndim else 1
    return output.reshape(rows, -1).astype(np.float32, copy=False)
