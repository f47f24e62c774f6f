"""The pages name what there is: every reason, error, metric, setting and step, and figures as they were measured."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.gateway import GatedExecutor, gateway_of
from support.readme import links, places

from bench import figures
from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.errors import BY_CODE
from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.http import status_of
from firstline_core.protocol.limits import DEFAULT_LIMITS
from firstline_core.protocol.mqtt_messages import Topics
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import Answer, Privacy, Reason, Route, Status, Tier, Wait
from firstline_edge.api.app import description
from firstline_edge.app import EdgeAgent
from firstline_edge.settings.load import load
from firstline_gateway.models.repository import Repository
from firstline_gateway.settings.settings import MqttSection, Settings, StoreSection

CHECKOUT = Path(__file__).parents[3]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
ANSWERS, ERRORS, MANIFEST, METRICS, MQTT, PROTOCOL = (
    (CHECKOUT / "docs" / "reference" / f"{name}.md").read_text()
    for name in ("answers", "errors", "manifest", "metrics", "mqtt", "protocol")
)

EXTRAS = {"av": r"firstline\[video\]"}
"""Extras that install a package, by its module."""

OF_THE_WORKBENCH = {"numpy", "PIL", "soundfile", "tokenizers", "firstline", "firstline_core", "firstline_edge"}
"""Modules that the workbench installs."""


def listed(page: str) -> set[str]:
    """What the first column of the page's tables names in backquotes."""
    cells = [line.split("|")[1] for line in page.replace(r"\|", "/").splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def names(metrics: RequestMetrics) -> set[str]:
    return {metric.name + ("_total" if metric.type == "counter" else "") for metric in metrics.registry.collect()}


@pytest.mark.parametrize("values", [Reason, Status, Tier], ids=lambda values: values.__name__)
def test_every_value_of_an_answer_is_explained(values: type[Reason | Status | Tier]) -> None:
    assert {value.value for value in values} <= listed(ANSWERS)


def test_every_parameter_is_explained() -> None:
    assert set(Answer.__struct_fields__) <= listed(ANSWERS)
    for wish in (Route, Privacy, Wait):
        assert f"| `{wish.__name__.lower()}` | {', '.join(f'`{value}`' for value in wish)} |" in ANSWERS


def test_no_unknown_reason_is_explained() -> None:
    section = ANSWERS.partition("## Reason")[2].partition("\n## ")[0]
    assert listed(section) - {"reason"} == {reason.value for reason in Reason}


def test_every_error_has_its_status() -> None:
    matches = re.findall(r"^\| `(\w+)` \| (\d+) \|", ERRORS, re.MULTILINE)
    rows = dict(matches)
    assert len(matches) == len(rows)  # each once
    assert rows == {code: str(status_of(kind("x"))) for code, kind in BY_CODE.items()}


def test_what_may_be_asked_again_is_told_by_the_status() -> None:
    for kind in BY_CODE.values():
        assert kind.retryable == (status_of(kind("x")) in (429, 503, 504))


def test_the_limits_are_the_default_ones() -> None:
    section = PROTOCOL.partition("| at most |")[2].partition("\n\n")[0]
    for value in (DEFAULT_LIMITS.rows, DEFAULT_LIMITS.tensors, DEFAULT_LIMITS.dimensions, DEFAULT_LIMITS.elements):
        assert re.search(rf"\b{value}\b", section)
    assert f"| {DEFAULT_LIMITS.body_bytes >> 20} MiB | body" in section
    assert f"| {DEFAULT_LIMITS.json_bytes >> 20} MiB | JSON" in section


async def test_every_address_of_either_tier_is_in_the_table(tmp_path: Path) -> None:
    section = PROTOCOL.partition("## Addresses")[2].partition("\n## ")[0]
    settings = Settings(store=StoreSection(url=f"sqlite:///{tmp_path / 'gateway.db'}"))
    gateway = gateway_of(settings, GatedExecutor(), Repository({}))
    served = gateway.control_plane().openapi()["paths"] | description()["paths"]
    await gateway.close()
    documented = set()
    for cell in (line.split("|")[1] for line in section.splitlines() if line.startswith("| `")):
        for path in re.findall(r"(/[^\s`,]+)", cell):
            plain, optional = re.sub(r"\[.*?\]", "", path), path.replace("[", "").replace("]", "")
            documented |= {plain, optional}
    behind = re.compile(r"/firstline/v1/contracts/|/fleet/v1/")  # told on the pages of operating, and of the fleet
    assert {path for path in served if not behind.match(path)} <= documented
    assert documented <= set(served)


def test_every_topic_and_user_property_is_named() -> None:
    topics = Topics("device", "firstline/v1")
    for topic in (topics.response, topics.results, topics.birth, topics.state, topics.request("{model}")):
        assert "{prefix}/{device}" + topic.removeprefix("firstline/v1/device") in MQTT
    properties = {
        mqtt_messages.HEADER_LENGTH,
        mqtt_messages.MODEL_VERSION,
        mqtt_messages.DEADLINE_MS,
        mqtt_messages.STATUS,
    }
    assert properties | {mqtt_messages.TRACEPARENT} <= listed(MQTT)


async def test_every_metric_is_named(tmp_path: Path) -> None:
    async with EdgeAgent(load(None, environ={}, overrides={"agent.state_dir": str(tmp_path)})) as agent:
        found = names(agent.metrics)
    settings = Settings(mqtt=MqttSection(enabled=True), store=StoreSection(url=f"sqlite:///{tmp_path / 'gateway.db'}"))
    gateway = gateway_of(settings, GatedExecutor(), Repository({}))
    found |= names(gateway.metrics)
    await gateway.close()
    assert {name for name in listed(METRICS) if name.startswith("firstline_")} == found


def test_every_manifest_key_is_named() -> None:
    assert {*Manifest.__struct_fields__, *Model.__struct_fields__} <= listed(MANIFEST)


def test_pages_link_to_files_and_name_no_local_path() -> None:
    for page in {*PAGES, *CHECKOUT.glob("*.md")}:
        text = page.read_text()
        for file, place in links(text):
            target = page.parent / file if file else page
            assert target.exists(), f"{page}: {file}"
            assert not place or place in places(target.read_text()), f"{page}: {file}#{place}"
        assert not re.findall(r"(?:/home|/root|/tmp|/work|/Users)/\S*", text), page


def test_the_main_figures_are_the_measured_ones() -> None:
    measured = {
        f"{figure.figure} | {_told(figure)} | {figure.aim or ''}".strip(): f"make -C bench {file.stem}"
        for file in (CHECKOUT / "bench" / "results").glob("*.json")
        for figure in figures.measured(file.stem)
    }
    section = (CHECKOUT / "docs" / "benchmarks.md").read_text().partition("| figure | value | aim | made by |")[2]
    rows = [re.fullmatch(r"\| (.+?) *\| `(.+)` \|", line) for line in section.partition("\n\n")[0].splitlines()[2:]]
    assert len(rows) > 10
    for row in rows:
        assert measured.get(row[1]) == row[2], f"'{row[1]}' is not what `{row[2]}` measured"


def test_the_readmes_figures_are_among_the_main_ones() -> None:
    readme, main = ((CHECKOUT / page).read_text() for page in ("README.md", "docs/benchmarks.md"))
    figures = re.findall(r"^- \*\*([\d.]+) %\*\*.*`(make -C bench \w+)`$", readme, re.MULTILINE)
    assert len(figures) == 3
    for percent, command in figures:
        as_share = f"{float(percent) / 100:g} share"
        assert re.search(rf"\| (?:{percent} %|{as_share})[^|]*\|[^|]*\| `{command}` \|", main), f"{percent} %"


def _told(figure: figures.Figure) -> str:
    value, unit = figure.value, figure.unit
    if unit == "share":
        return f"{value:.2%}".replace("%", " %")
    return (f"{value:.4g} {unit}" if isinstance(value, float) else f"{value} {unit}").strip()


def test_the_site_leads_to_every_page() -> None:
    site = tomllib.loads((CHECKOUT / "zensical.toml").read_text())["project"]
    listed_pages = [name for entry in site["nav"] for name in _names(entry)]
    folder = CHECKOUT / "docs"
    pages = {str(path.relative_to(folder)) for path in folder.rglob("*.md")}
    assert sorted(listed_pages) == sorted(name for name in pages if not name.startswith("adr/"))


def _names(entry: str | list[Any] | dict[str, Any]) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [name for part in (entry if isinstance(entry, list) else entry.values()) for name in _names(part)]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.stem
)
def test_a_page_names_the_packages_of_its_scripts(page: Path) -> None:
    text = page.read_text()
    scripts = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    imported = {name for script in scripts for name in re.findall(r"^(?:import|from) (\w+)", script, re.MULTILINE)}
    local = {name for script in scripts for name in re.findall(r"^# (?:\w+/)*(\w+)\.py$", script, re.MULTILINE)}
    for package in imported - local - OF_THE_WORKBENCH - sys.stdlib_module_names:
        assert re.search(rf"pip install [^`]*(?:\b{package}\b|{EXTRAS.get(package, package)})", text), package
