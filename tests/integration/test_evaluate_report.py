"""What `firstline evaluate --plots` writes: drawing takes seconds on a busy machine, so it is done once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from firstline.cli.app import app
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.evaluate import Measured, figures, measure
from firstline.workbench.report import PAGE_NAME, write_report
from firstline.workbench.report_data import report_data
from firstline_core.bundle.store import open_bundle

_DIGITS = Path(__file__).parents[2] / "models/digits"
_COMMAND = ("evaluate", str(_DIGITS / "bundle"), "--data", str(_DIGITS / "heldout"))


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measure(open_bundle(_DIGITS / "bundle"), open_dataset(_DIGITS / "heldout", 200))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command writes of the same images."""
    page = tmp_path_factory.mktemp("drawn") / "new" / "plots" / PAGE_NAME
    result = CliRunner().invoke(app, [*_COMMAND, "--limit", "200", "--plots", str(page.parent)])
    assert result.exit_code == 0, result.output
    assert f"Drawn: {page}" in result.stdout
    return page


class _Page(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_plots_and_self_contained_page_are_written(drawn: Path) -> None:
    names = {f"edge-onnx-{plot}.png" for plot in ("accuracy", "risk", "reliability", "scores")}
    assert {file.name for file in drawn.parent.iterdir()} == names | {PAGE_NAME}
    for name in names:
        with Image.open(drawn.parent / name) as image:
            assert image.format == "PNG" and image.width == 1280

    text = drawn.read_text()
    page = _Page(text)
    assert not page.open
    assert not re.search(r"https?:|=\"/|<script|<link|@import|url\(", text)
    images, dark = page.all("img"), page.all("source")
    assert len(images) == len(dark) == 4
    for image, other in zip(images, dark, strict=True):
        light_data, dark_data = image["src"] or "", other["srcset"] or ""
        assert light_data.startswith("data:image/png;base64,") and dark_data.startswith("data:image/png;base64,")
        assert light_data != dark_data
        assert other["media"] == "(prefers-color-scheme: dark)"
        assert len(image["alt"] or "") > 40
    assert len(page.all("table")) == 6 == len(page.all("caption"))
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")


def test_page_states_the_measured_figures(measured: Measured, drawn: Path) -> None:
    (edge,) = measured.edges
    tiers = report_data(measured, edge).tiers
    assert tiers is not None and measured.full is not None
    answers = [
        near if kept else far
        for near, far, kept in zip(edge.answers.labels, measured.full.labels, edge.accepted, strict=True)
    ]
    assert tiers.accuracy.hits == (answers == measured.truth["label"]).sum()
    assert tiers.disagreement.rows == edge.accepted.sum()
    assert tiers.escalated.hits == (~edge.accepted).sum()
    at = tiers.curve.at(tiers.escalated.value)
    assert tiers.curve.accuracy[at] == pytest.approx(tiers.accuracy.value)
    text = drawn.read_text()
    assert f"{tiers.accuracy.hits} of 200" in text and f"{tiers.disagreement.hits} of {tiers.disagreement.rows}" in text


def test_edge_model_alone_has_a_reliability_plot(measured: Measured, tmp_path: Path) -> None:
    bare = replace(measured, full=None)
    write_report(bare, figures(bare), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {PAGE_NAME, "edge-onnx-reliability.png"}
