"""`edge-agent doctor`: what is missing or slow on this device, and what to type. Needs no wheel to start."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict

from firstline_edge.cli.findings import Finding, State, from_error
from firstline_edge.cli.machine import machine_findings, package_findings
from firstline_edge.cli.output import complain, say, say_json
from firstline_edge.cli.parser import FAILED, OK, USAGE


def command(arguments: argparse.Namespace) -> int:
    """Looks at the machine first, then at what its wheels are needed for."""
    findings = [*machine_findings(), *package_findings()]
    if not any(finding.state is State.MISSING for finding in findings):
        from firstline_core.errors import ConfigError
        from firstline_edge.cli.checks import all_findings
        from firstline_edge.settings.load import load

        try:
            settings = load(arguments.config, overrides=dict(arguments.overrides))
        except ConfigError as error:
            findings.append(from_error("configuration", error.message))
            _print(findings, arguments.output)
            complain(error.message)
            return USAGE
        findings += all_findings(settings)
    _print(findings, arguments.output)
    return FAILED if any(finding.state is State.MISSING for finding in findings) else OK


def _print(findings: list[Finding], form: str) -> None:
    if form == "json":
        say_json([asdict(finding) for finding in findings])
        return
    for finding in findings:
        say(f"{finding.state:7}  {finding.subject}: {finding.detail}")
        if finding.advice:
            say(f"         {finding.advice}")
    counts = Counter(finding.state for finding in findings)
    say(", ".join(f"{counts[state]} {state}" for state in State))
