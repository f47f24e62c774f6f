"""Steps hold no more memory than is counted before they run."""

import tracemalloc
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from support.audio import clip, clips

from firstline_core.errors import PayloadTooLargeError
from firstline_core.processing.compile import compile_preprocess
from firstline_core.processing.cost import DecodingCost
from firstline_core.processing.memory import steps_memory
from firstline_core.processing.steps import (
    AudioStep,
    BandEnergies,
    CenterCrop,
    Crop,
    Decode,
    DecodeAudio,
    Detrend,
    Envelope,
    Flatten,
    Graph,
    InputSpec,
    Layout,
    Mel,
    Mono,
    Observed,
    Pad,
    PreStep,
    Resample,
    Resize,
    Scale,
    Standardize,
    TextStep,
    Welch,
    Windows,
)
from firstline_core.protocol.limits import DecodingLimits
from firstline_core.types import Tensor

RNG = np.random.default_rng(3)
AUDIO = InputSpec("audio", "BYTES", (-1,), "audio")
START = (DecodeAudio(), Mono(), Resample(8000))
SHAPES = [(1, 20_000), (2, 2000, 3), (100, 300)]

SIGNALS: list[tuple[PreStep, ...]] = [
    (Detrend(),),
    (Detrend("constant"),),
    (Welch(50.0, 256),),
    (Welch(50.0, 256, 16),),
    (BandEnergies(50.0, (0.0, 5.0, 12.5, 26.0)),),
    (Envelope(),),
    (Mel(8000.0, 256, 128, 20),),
    (Mel(8000.0, 256, 16, 60, frames="last"),),
    (Standardize(),),
    (Observed(7),),
    (Observed(7), Standardize()),
    (Scale(),),
    (Scale((1.0,), (2.0,)),),
    (Flatten(),),
    (Standardize(), Detrend(), Envelope(), Scale(), Flatten()),
    (Welch(50.0, 256), Scale(), Flatten()),
    (Mel(8000.0, 256, 64, 40, log=False), Scale((1.0,), (2.0,)), Flatten()),
]
PICTURES: list[tuple[PreStep, ...]] = [(Layout("NCHW"),), (Layout("NHWC"), Scale()), (Scale(), Layout("NCHW"))]
CLIPS: list[tuple[PreStep, ...]] = [
    START,
    (*START, Crop(4000, "end")),
    (*START, Pad(90_000, "both")),
    (*START, Windows(2000, 500)),
    (DecodeAudio(), Resample(11_025)),
    (*START, Standardize(), Mel(8000.0, 256, 16, 40)),
    (*START, Windows(4000, 1000), Mel(8000.0, 256, 64, 40), Scale()),
    (DecodeAudio(), Resample(8000), Envelope()),
]


def compiled(steps: tuple[PreStep, ...], spec: InputSpec, limit_bytes: int = 1 << 30) -> Any:
    return compile_preprocess(steps, spec, lambda _: lambda a: a, DecodingLimits(memory_bytes=limit_bytes))


def peak_bytes(run: Callable[[], object]) -> int:
    run()  # windows and filters of the model are kept
    tracemalloc.start()
    try:
        assert run() is not None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("steps", "shape"),
    [*((steps, shape) for steps in SIGNALS for shape in SHAPES), *((steps, (3, 90, 70, 3)) for steps in PICTURES)],
)
def test_steps_on_numbers_hold_what_is_counted(steps: tuple[PreStep, ...], shape: tuple[int, ...]) -> None:
    of = Tensor("x", RNG.normal(size=shape))
    spec = InputSpec("x", of.datatype, (-1, *([-1] * (len(shape) - 1))))
    counted = steps_memory(steps, shape[1:])
    total_bytes = shape[0] * counted.row_bytes + counted.once_bytes
    measured = peak_bytes(lambda: compiled(steps, spec).run(of))
    assert measured <= total_bytes + 40_000  # what is compiled
    assert total_bytes <= 5 * measured + 100_000
    if total_bytes > 100_000:
        with pytest.raises(PayloadTooLargeError, match=r"bytes of memory; at most .* Send fewer or shorter rows"):
            compiled(steps, spec, total_bytes - 1).run(of)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("steps", CLIPS)
def test_steps_of_audio_hold_what_is_counted(steps: tuple[PreStep, ...], rows: int) -> None:
    of = clips(*[clip(RNG.uniform(-0.5, 0.5, (30_000, 2)), rate_hz=16_000) for _ in range(rows)])
    prepared = compiled(steps, AUDIO)
    costs = prepared.audio.check_and_measure(of)
    cost, measured = DecodingCost((costs,)), peak_bytes(lambda: prepared.run(of, costs))
    assert measured <= cost.memory_bytes + 40_000
    assert cost.memory_bytes <= 6 * measured
    largest = max(row.working_bytes for row in cost.rows)
    with pytest.raises(PayloadTooLargeError, match=r"decoding\.memory_limit_bytes"):
        compiled(steps, AUDIO, largest - 1).run(of)


def test_every_step_is_counted() -> None:
    counted = {type(step) for steps in (*SIGNALS, *PICTURES, *CLIPS) for step in steps}
    elsewhere = {Decode, CenterCrop, Resize, Graph, *get_args(TextStep)}  # images are measured by their headers
    assert counted == set(get_args(PreStep)) - elsewhere >= set(get_args(AudioStep))


def test_a_small_request_that_would_become_a_large_one_is_refused() -> None:
    step = Mel(8000.0, 64, 1, 12)  # twelve numbers of each sample
    of = np.zeros((1, 4_000_000), np.float32)
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLargeError, match="bytes of memory; at most 268435456"):
            compiled((step,), InputSpec("x", "FP32", (-1, -1)), 256 << 20).run(Tensor("x", of))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
