from pathlib import Path

from msgspec import structs

from firstline_core.bundle.store import open_bundle
from firstline_core.hardware.catalogue import Catalogue, Engine, Memory, Processor
from firstline_core.hardware.readings import Absent, Modelled
from firstline_core.planning.plan import Link, plan, plan_lines
from firstline_core.planning.split import Cut, Form, Splits
from firstline_core.profile.profile import Point, PointKey, Profile, QueryBytes, distribution

_MANIFEST = open_bundle(Path(__file__).parents[4] / "models/digits/bundle").manifest
_CPU = "CPUExecutionProvider"
_MACHINE = Catalogue("f" * 16, "a board", "6.1", Processor("", "x86_64", 2, 2.0), Memory(2**30), measured=True)


def _point(
    variant: str, ms: float, *, provider: str = _CPU, threads: int = 1, batch: int = 1, rate: float = 100.0
) -> Point:
    model = next(model for model in _MANIFEST.models if model.id == variant)
    took = distribution([ms / 1000] * 9)
    return Point(
        key=PointKey(variant, model.digest, provider, threads, batch),
        ran_on=provider,
        query=took,
        rested=took,
        prepare_ms=ms / 4,
        run_ms=ms,
        offline_per_s=rate,
        load_ms=1,
        first_ms=1,
        moved=QueryBytes(1, 1, 1),
        peak_memory_bytes=Absent("nobody looked"),
        processor_ms=ms,
        energy_mj=Modelled(2.0, "stated costs"),
    )


def _profile(*points: Point) -> Profile:
    return Profile("digits", 1, "board-1", "f" * 16, points)


def _splits() -> Splits:
    form = Form("int8", 72, 60, 0.01, 0.01, 0.0)
    cuts = (Cut("pixels", (1, 64), 0.1, 0.9, (form,)),)
    return Splits("digits", 1, "full", _MANIFEST.full_digest, _CPU, 1, 0.5, 1.0, 120, 10, 3, cuts)


def test_the_fastest_way_with_the_fewest_threads_is_planned() -> None:
    found = plan(
        _MANIFEST,
        _profile(_point("edge-onnx", 2.0), _point("edge-onnx", 1.0, threads=2), _point("edge-onnx", 0.98, threads=4)),
    )
    assert (found.chosen.threads, found.chosen.row_ms) == (2, 1.0)
    assert [other.threads for other in found.others] == [4, 1]


def test_without_a_link_the_bundles_order_decides() -> None:
    found = plan(_MANIFEST, _profile(_point("edge-tflite-int8", 0.1, provider="tflite"), _point("edge-onnx", 5.0)))
    assert found.chosen.variant == "edge-onnx"
    assert any("own order decides" in sentence for sentence in found.open)


def test_over_a_stated_link_the_expected_time_decides() -> None:
    """edge-onnx keeps 76 %; a slow variant that keeps everything wins over a slow link only."""
    first = _MANIFEST.edge[0]
    assert first.certificate is not None
    second = structs.replace(
        _MANIFEST.edge[1],
        certificate=structs.replace(first.certificate, kept=1.0, edge_digest=_MANIFEST.edge[1].digest),
    )
    manifest = structs.replace(_MANIFEST, edge=(first, second))
    points = (_point(first.id, 1.0), _point(second.id, 4.0, provider="tflite"), _point("full", 500.0))
    chosen = {}
    for round_trip_ms in (1.0, 100.0):
        found = plan(manifest, _profile(*points), splits=_splits(), link=Link(1e6, round_trip_ms))
        assert found.chosen.expected_ms is not None
        chosen[round_trip_ms] = (found.chosen.variant, round(found.chosen.expected_ms, 6))
    assert chosen == {1.0: (first.id, round(1.0 + 0.24 * (1.0 + 1.5 + 0.12), 6)), 100.0: (second.id, 4.0)}


def test_the_expected_time_is_that_of_sending_the_input() -> None:
    """On a slow link the device itself would be quicker, but the agent does not run the full model."""
    points = [_point(model.id, 1.0, provider="tflite") for model in _MANIFEST.edge]
    found = plan(_MANIFEST, _profile(*points, _point("full", 1.5)), splits=_splits(), link=Link(1e6, 100.0))
    assert found.full.way.kind == "device"
    assert found.full.escalation_ms == 100.0 + 1.5 + 0.12
    kept = found.chosen.kept
    assert found.chosen.expected_ms == 1.0 + (1 - kept) * found.full.escalation_ms


def test_a_broken_provider_is_ignored_and_noted() -> None:
    broken = structs.replace(_MACHINE, engines=(Engine("onnx", "CUDAExecutionProvider", False, "No such device."),))
    points = (_point("edge-onnx", 0.1, provider="CUDAExecutionProvider"), _point("edge-onnx", 3.0))
    found = plan(_MANIFEST, _profile(*points), broken)
    assert found.chosen.provider == _CPU
    assert "CUDAExecutionProvider is ignored: No such device." in found.open


def test_the_smallest_nearly_best_batch_is_planned() -> None:
    batches = [_point("edge-onnx", 1.0, batch=rows, rate=rate) for rows, rate in ((1, 100), (4, 390), (16, 400))]
    assert plan(_MANIFEST, _profile(*batches)).batch == 4


def test_disturbed_measurements_are_noted() -> None:
    point = structs.replace(_point("edge-onnx", 1.0), waited_share=0.4)
    sentence = "1 point waited for a core that other work had, up to 40 % of their time."
    assert sentence in plan(_MANIFEST, _profile(point)).open
    calm = structs.replace(point, waited_share=0.04)
    assert not any("waited" in sentence for sentence in plan(_MANIFEST, _profile(calm)).open)


def test_no_batch_is_planned_for_a_model_that_runs_row_by_row() -> None:
    edge = tuple(structs.replace(model, batch=1) for model in _MANIFEST.edge)
    point = _point("edge-onnx", 1.0)
    digest = next(model.digest for model in edge if model.id == "edge-onnx")
    found = plan(
        structs.replace(_MANIFEST, edge=edge),
        _profile(structs.replace(point, key=structs.replace(point.key, model_digest=digest))),
    )
    assert found.chosen is not None and found.batch is None
    assert "edge-onnx runs row by row, as the bundle declares (`batch: 1`)." in found.open
    assert not any("profile --batches" in sentence for sentence in found.open)


def test_a_slow_device_sends_its_input() -> None:
    slow = plan(_MANIFEST, _profile(_point("full", 1500.0)), splits=_splits(), link=Link(1e6, 1.0))
    assert slow.full.way.kind == "input"
    quick = plan(_MANIFEST, _profile(_point("full", 1.5)), splits=_splits(), link=Link(1e6, 1.0))
    assert quick.full.way.kind == "device"


def test_the_measured_full_model_counts_for_every_task() -> None:
    """The digest of the full model that certificates and escalations name covers the task, that of a point does not."""
    manifest = structs.replace(_MANIFEST, task=structs.replace(_MANIFEST.task, independent=True))
    assert manifest.full_digest != _MANIFEST.full_digest
    found = plan(manifest, _profile(_point("full", 1500.0)), splits=_splits(), link=Link(1e6, 1.0))
    assert found.full.way.kind == "input"
    assert not any("full model was not measured" in sentence for sentence in found.open)


def test_missing_measurements_are_listed_as_open() -> None:
    found = plan(_MANIFEST, None)
    assert found.chosen is None
    assert any(sentence.startswith("No profile") for sentence in found.open)
    other = plan(_MANIFEST, structs.replace(_profile(_point("edge-onnx", 1.0)), fingerprint="other"), _MACHINE)
    assert any("another machine" in sentence for sentence in other.open)
    assert any("'edge-tflite-int8' was not measured" in sentence for sentence in other.open)
    stale = structs.replace(_point("edge-onnx", 1.0), key=PointKey("edge-onnx", "0" * 64, _CPU, 1, 1))
    assert plan(_MANIFEST, _profile(stale)).chosen is None
    elsewhere = structs.replace(_splits(), model_digest="0" * 64)
    assert plan(_MANIFEST, None, splits=elsewhere).full is None


def test_a_plan_as_text_has_its_figures() -> None:
    text = "\n".join(
        plan_lines(
            plan(_MANIFEST, _profile(_point("edge-onnx", 1.0), _point("full", 9.0)), splits=_splits(), link=Link(1e6))
        )
    )
    assert (
        "run       edge-onnx by CPUExecutionProvider, 1 thread(s): 1 ms a row (p99 1), 100 rows/s, 2 mJ modelled"
        in text
    )
    assert "keeps 76% under its certificate" in text
    assert "open      The round trip to the gateway is not stated" in text
