"""docs/performance.md's tables, from bench/results/*.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import figures as book
from bench import page
from bench.serving.samples import Sample, median

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
_TOLD = ("onnxruntime", "numpy", "uvicorn", "uvloop")
_RATES = re.compile(r"(<!-- rates: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_MACHINE = re.compile(r"(<!-- machine: ([\w-]+)(?:/(\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)


def refill() -> None:
    """Refills the page's tables from the last measurement."""
    PAGE.write_text(filled(PAGE.read_text()))


def filled(text: str) -> str:
    """The page as it was measured."""
    text = _RATES.sub(lambda match: match[1] + rates(book.stored(match[2])) + match[3], text)
    text = _MACHINE.sub(
        lambda match: match[1] + machine(book.stored(match[2]).get("machine", {}), match[3]) + match[4], text
    )
    return page.filled(text, book.measured)


def rates(results: Mapping[str, Any]) -> str:
    """Requests a second, medians over the rounds: a row for everybody, a column for every question."""
    samples = [Sample(**one) for one in results.get("samples", ())]
    whats = list(dict.fromkeys(one.what for one in samples if "rate_per_s" in one.values))
    if not whats:
        return ""
    lines = [f"| requests a second | {' | '.join(whats)} |", "|---" * (len(whats) + 1) + "|"]
    for who in dict.fromkeys(one.who for one in samples):
        cells = [median(samples, who, what, "rate_per_s") for what in whats]
        texts = ["" if cell is None else f"{cell:,.0f}" if cell >= 100 else f"{cell:.1f}" for cell in cells]
        lines.append(f"| {who} | {' | '.join(texts)} |".replace("  |", " |").replace("|  |", "| |"))
    for who, why in results.get("not measured", {}).items():
        lines += ["", f"{who} could not be measured: {reason(why)}"]
    return "\n".join([*lines, ""])


def machine(results: Mapping[str, Any], part: str | None) -> str:
    """The machine in a sentence."""
    found = results.get(part, {}) if part else results
    if not found:
        return ""
    packages = found["packages"]
    versions = ", ".join(f"{name} {packages[name]}" for name in _TOLD if name in packages)
    peers = ", ".join(f"{name} {next(iter(of.values()))}" for name, of in found.get("peers", {}).items())
    cores = f"{found['cores']}{' virtual' if found['virtual'] else ''} cores of {found['processor']}"
    return (
        f"{found['when'][:10]}: {cores}, Linux {found['kernel']}, Python {found['python']}, {versions}"
        f"{'; ' if peers else ''}{peers}. Load before it: {found['load_per_core']} for each core.\n"
    )


def reason(why: str) -> str:
    """What a server that could not be measured did, and the last that it said."""
    did, _, output = why.partition(": ")
    last = next((line.strip() for line in reversed(output.split(" | ")) if line.strip()), "")
    return f"{did}: {last[:200]}" if last else did
