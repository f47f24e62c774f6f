"""SECURITY.md names limits that hold, files that are there, and targets and settings that can be used."""

import ast
import re
from pathlib import Path

import pytest

from firstline.console import connections
from firstline.workbench.data import boxes, files, tables
from firstline_core.bundle import golden, manifest, trust
from firstline_core.fleet import configuration, registry, selector, twin
from firstline_core.processing import image_header, images
from firstline_core.protocol import asgi, http, mqtt_connection, mqtt_messages
from firstline_core.protocol.http_server import ServerLimits
from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS, DEFAULT_LIMITS
from firstline_core.storage import secrets, setting_places
from firstline_core.units import MIB
from firstline_edge.fleet import report
from firstline_edge.settings.settings import EdgeSettings
from firstline_gateway.commands import serve
from firstline_gateway.settings.settings import Settings

CHECKOUT = Path(__file__).parents[3]
PAGE = (CHECKOUT / "SECURITY.md").read_text()
ROOMS = ("shared/firstline_core", "edge_agent/firstline_edge", "cloud_gateway/firstline_gateway", "firstline")

_METADATA = {
    "root": f"{trust.LIMITS_BYTES['root'] // 1024} KiB",
    "timestamp": f"{trust.LIMITS_BYTES['timestamp'] // 1024} KiB",
    "snapshot": f"{trust.LIMITS_BYTES['snapshot'] // 1024} KiB",
    "targets": f"{trust.LIMITS_BYTES['targets'] // 1_000_000} MB",
}
SERVER = ServerLimits()
_UNPICKLERS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
_SUSPICIOUS = re.compile(rf"\b(?:{'|'.join(_UNPICKLERS)}|allow_pickle|eval|exec)\b")  # parsing all takes seconds
LIMITS = {
    "HTTP head": (f"{SERVER.head_bytes // 1024} KiB", f"{SERVER.head_s:g} s"),
    "connections without": (
        f"{SERVER.pending:,}, and half of the descriptors",
        f"TLS handshake {SERVER.handshake_s:g} s",
    ),
    "parameters of a query": (f"{asgi.QUERY_FIELDS}",),
    "pipelined HTTP requests": (f"{SERVER.pipelined} on one connection",),
    "a client that does not read": (f"{SERVER.write_s:g} s",),
    "slow HTTP bodies": (f"{http.GRACE_S:g} s",),
    "connections at the agent": (f"{SERVER.pending:,}, and half of the descriptors",),
    "all connections at the gateway": (f"{serve.CONNECTIONS_LIMIT:,}, and half of the descriptors",),
    "the console's connections": (f"head {connections.HEAD_BYTES // 1024} KiB and {connections.HEAD_S:g} s",),
    "gRPC connections": (
        f"{SERVER.pending // 2:,}, and a quarter of the descriptors",
        f"handshake {SERVER.handshake_s:g} s; closed after {SERVER.idle_s:g} s without a call",
    ),
    "HTTP body": (f"{DEFAULT_LIMITS.body_bytes // MIB} MiB",),
    "JSON": (f"{DEFAULT_LIMITS.json_bytes // MIB} MiB",),
    "tensors": (
        *(f"{DEFAULT_LIMITS.tensors}; {DEFAULT_LIMITS.dimensions} dimensions", f"{DEFAULT_LIMITS.rows:,} rows"),
        f"{DEFAULT_LIMITS.elements // MIB} Mi elements together, {DEFAULT_LIMITS.byte_elements // MIB} Mi of BYTES",
    ),
    "`id`": (f"{DEFAULT_LIMITS.id_chars} characters",),
    "image": (
        f"{DEFAULT_DECODING_LIMITS.pixels // 1_000_000} million pixels, {DEFAULT_DECODING_LIMITS.side:,} a side",
        f"{DEFAULT_DECODING_LIMITS.memory_bytes // MIB} MiB of working memory",
        f"{images.PIXELS_LIMIT // 1_000_000} million after the steps",
        f"{images.SOURCE_PIXELS_LIMIT // 1_000_000} million for all rows",
    ),
    "pieces of an image": (
        f"{image_header.JPEG_PIECES_LIMIT:,} segments",
        f"{image_header.JPEG_EXIF_LIMIT} of EXIF",
        f"{image_header.JPEG_HEAD_LIMIT_BYTES // MIB} MiB before the picture",
        f"{image_header.JPEG_SCANS_LIMIT} scans",
    ),
    "MQTT properties": (f"{mqtt_connection.PROPERTIES_LIMIT_BYTES // 1024} KiB",),
    "MQTT topic": (f"{mqtt_messages._NAME_LIMIT_CHARACTERS} characters",),
    "`manifest.json`": (f"{manifest.MANIFEST_LIMIT_BYTES // MIB} MiB",),
    "a device's twin": (f"{twin.LIMIT_BYTES // 1024} KiB; {report._LIMIT} models",),
    "settings from the fleet": (f"{configuration.LIMIT_BYTES // 1024} KiB",),
    "TUF metadata": tuple(f"{role} {size}" for role, size in _METADATA.items()),
    "a publication": (f"{registry.PUBLICATION_LIMIT_BYTES // MIB} MiB",),
    "golden answers": (f"{golden.LIMIT_BYTES // MIB} MiB, {golden.ROWS_LIMIT} rows",),
    "a selector": (f"{selector._LIMIT_CHARACTERS:,} characters",),
    "configuration": (f"{setting_places.FILE_LIMIT_BYTES // MIB} MiB",),
    "a secret's file": (f"{secrets._LIMIT_BYTES // 1024} KiB",),
    "workbench: images": (f"{files.FILE_LIMIT_BYTES // MIB} MiB",),
    "workbench: tables": (
        f"{tables.TABLE_LIMIT_BYTES // MIB} MiB of text",
        f"{tables.COLUMN_LIMIT_BYTES // (1024 * MIB)} GiB a column and {tables.ROWS_LIMIT:,} rows",
    ),
    "workbench: labelled boxes": (f"{boxes.COCO_LIMIT_BYTES // MIB} MiB",),
}


def rows() -> list[list[str]]:
    section = PAGE.partition("## Limits")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "| `" in line]


@pytest.mark.parametrize("what", LIMITS)
def test_a_limit_is_what_the_page_says(what: str) -> None:
    (cell,) = [row[1] for row in rows() if row[0].startswith(what)]
    for limit in LIMITS[what]:
        assert limit in cell


def test_where_a_limit_is_enforced_there_is_a_file() -> None:
    found = {path for row in rows() for path in re.findall(r"`([\w/]+\.py)`", row[2])}
    assert len(found) > 15
    for path in found:
        assert (CHECKOUT / path).exists() or any(list((CHECKOUT / folder).rglob(path)) for folder in ROOMS), path


def test_settings_and_targets_exist() -> None:
    for folder, target in re.findall(r"`make (?:-C (\w+) )?([\w-]+)`", PAGE):
        assert f"\n{target}: " in (CHECKOUT / folder / "Makefile").read_text()
    for section, key in re.findall(r"`(api|auth|mqtt)\.((?!py`)\w+)`", PAGE):
        sections = [getattr(kind(), section, None) for kind in (EdgeSettings, Settings)]
        assert any(hasattr(one, key) for one in sections if one is not None), f"{section}.{key}"


def test_nothing_that_ships_runs_what_it_reads() -> None:
    """No pickle and nothing like it: a file is data."""
    read = 0
    for folder in ("shared", "edge_agent", "cloud_gateway", "firstline"):
        for path in (CHECKOUT / folder).rglob("*.py"):
            read += 1
            source = path.read_text()
            if not _SUSPICIOUS.search(source):
                continue
            for node in ast.walk(ast.parse(source)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not _UNPICKLERS & {name.partition(".")[0] for name in names}, path
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    assert node.func.id not in ("eval", "exec"), f"{path}:{node.lineno}"
                if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                    assert isinstance(node.value, ast.Constant) and node.value.value is False, path
    assert read > 200
