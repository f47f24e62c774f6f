"""Figures of the speed benchmark are made of its samples as they say, and its bodies are what servers understand."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from bench.serving import bodies, compare_peers, peer, rest, rounds
from bench.serving.client import session
from bench.serving.models import INPUT, M, S, rows, write_bundle
from bench.serving.processes import undisturbed
from bench.serving.samples import Sample, median, ratio
from firstline_core.bundle.store import open_bundle


def sample(who: str, what: str, **values: float) -> Sample:
    return Sample("p", 0, who, what, values)


def test_a_ratio_is_of_medians() -> None:
    found = [sample("a", "x", rate_per_s=rate) for rate in (1, 90, 100)] + [sample("b", "x", rate_per_s=100)]
    assert median(found, "a", "x", "rate_per_s") == 90
    assert ratio(found, ("a", "x"), ("b", "x")) == 0.9
    assert ratio(found, ("a", "x"), ("c", "x")) is None
    assert median(found, "a", "x", "p50_us") is None


def test_what_was_not_measured_does_not_hold() -> None:
    aimed = [figure for figure in rest.figures([]) if figure.aim is not None]
    assert aimed
    assert not any(figure.holds for figure in aimed)
    aimed = [figure for figure in compare_peers.figures([], {}) if figure.aim is not None]
    assert {figure.aim for figure in aimed} == {">= 3", ">= 2.5"}


def test_aims_hold_where_they_are_met() -> None:
    found = []
    for question in (*rest.SMALL, *rest.MEDIUM):
        what = question.name + (rest.TWO if question in rest.MEDIUM else "")
        found += [
            sample(who, what, rate_per_s=100, p50_us=10, cpu_us=5, bad=0, client_share=0.5)
            for who in (rounds.GATEWAY, rounds.RAW)
        ]
    aimed = [figure for figure in rest.figures(found) if figure.aim is not None]
    assert len(aimed) == 6
    assert all(figure.holds for figure in aimed)
    found.append(sample(rounds.GATEWAY, rest.S_BINARY.name, rate_per_s=1, bad=3, client_share=0.5))
    assert [figure.figure for figure in rest.figures(found) if figure.holds is False] == [
        "REST binary, S, 32 in flight, one core: rate / raw ASGI's",
        "answers that were no 200",
    ]


def test_peers_are_compared_at_their_best_and_failures_named() -> None:
    binary, text = (question.name for question in compare_peers.QUESTIONS[:2])
    found = [
        sample("gateway", binary, rate_per_s=700),
        sample("pytriton", binary, rate_per_s=100),
        sample("pytriton", text, rate_per_s=350),
        sample("MLServer", text, rate_per_s=100),
        sample("MLServer, unbatched", text, rate_per_s=280),
    ]
    figures = {figure.figure: figure for figure in compare_peers.figures(found, {"MLServer": "ended with 1"})}
    assert figures["gateway, S binary, 32 in flight: rate / pytriton's best"].value == 2
    assert figures["gateway, S binary, 32 in flight: rate / MLServer's best"].value == 2.5
    assert figures["gateway, S binary, 32 in flight: rate / MLServer's best"].holds is False
    assert "MLServer could not be measured: ended with 1" in figures


def test_bodies_say_the_same_in_both_forms() -> None:
    array = rows(S)
    binary, text = bodies.v2_binary(array), bodies.v2_json(array)
    length = int(binary.headers["Inference-Header-Content-Length"])
    assert json.loads(binary.content[:length])["inputs"][0]["shape"] == [1, 64]
    assert np.array_equal(np.frombuffer(binary.content[length:], np.float32), array.ravel())
    assert np.array_equal(np.array(json.loads(text.content)["inputs"][0]["data"], np.float32), array.ravel())
    assert len(bodies.v2_json(rows(M)).content) == 961_781


def test_the_script_posts_the_body_with_its_headers(tmp_path: Path) -> None:
    body = bodies.v2_binary(rows(S))
    script = bodies.plan(tmp_path, "load", "/a", body, {"Authorization": "Bearer k"}).read_text()
    assert 'wrk.path = "/a"' in script
    assert 'wrk.headers["Authorization"] = "Bearer k"' in script
    assert (tmp_path / "load.body").read_bytes() == body.content


def test_the_models_are_bundles_that_answer_with_probabilities(tmp_path: Path) -> None:
    bundle = open_bundle(write_bundle(S, tmp_path / "s", edge=True))
    assert bundle.manifest.edge[0].certificate is not None
    found = session(tmp_path / "s" / "model.onnx").run(None, {INPUT: rows(S, 3)})[0]
    assert found.shape == (3, 10)
    assert found.sum(axis=1) == pytest.approx(1.0)


def test_every_peer_has_a_server_and_a_lock() -> None:
    checkout = Path(__file__).parents[3]
    for one in peer.PEERS:
        assert (checkout / "bench" / "serving" / "peers" / f"serve_{one.key}.py").exists()
        assert f"{one.package}==" in (checkout / "requirements" / "peers" / f"{one.key}.lock").read_text().replace(
            "ray[serve]", "ray"
        )


def test_an_undisturbed_measurement_leaves_the_scheduling_as_it_was() -> None:
    before = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    with undisturbed() as allowed:
        assert os.sched_getscheduler(0) == (os.SCHED_RR if allowed else before[0])
    assert (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) == before
