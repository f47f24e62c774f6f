"""What `firstline evaluate --plots` writes: drawing takes seconds on a busy machine, so it is done once."""

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
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
        if tag not in ("meta", "img"):
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
    images = page.all("img")
    assert len(images) == 4
    for image in images:
        assert (image["src"] or "").startswith("data:image/png;base64,")
        assert len(image["alt"] or "") > 40
    assert len(page.all("table")) == 2 == len(page.all("caption"))
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")


def test_page_states_the_measured_figures(measured: Measured, drawn: Path) -> None:
    (edge,) = measured.edges
    found = report_data(measured, edge, {})
    assert found.tiered and found.disagreement and found.escalated and found.curve is not None
    answers = [
        near if accepted else far
        for near, far, accepted in zip(edge.answers.labels, measured.full.labels, edge.accepted, strict=True)
    ]
    assert found.tiered.hits == (answers == measured.truth["label"]).sum()
    assert found.disagreement.rows == edge.accepted.sum()
    assert found.escalated.hits == (~edge.accepted).sum()
    at = int(np.argmin(np.abs(found.curve.escalated - found.escalated.value)))
    assert found.curve.accuracy[at] == pytest.approx(found.tiered.value)
    text = drawn.read_text()
    assert f"{found.tiered.hits} of 200" in text
    assert f"{found.disagreement.hits} of {found.disagreement.rows}" in text


def test_edge_model_alone_has_a_reliability_plot(measured: Measured, tmp_path: Path) -> None:
    bare = replace(measured, full=None)
    write_report(bare, figures(bare), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {PAGE_NAME, "edge-onnx-reliability.png"}
