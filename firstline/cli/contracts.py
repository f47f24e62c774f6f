"""Contracts of `firstline certify` other than on all accepted answers: on the stream, by class, by known group."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.output import confidence, percent, print_table, table
from firstline.workbench.certify import Certification, certify_bundle
from firstline.workbench.contracts import (
    GroupsProof,
    KeptContract,
    Terms,
    certify_by,
    certify_classes,
    certify_stream_bundle,
)
from firstline.workbench.dataset import Dataset
from firstline.workbench.evidence import Evidence
from firstline.workbench.groups import read_groups
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.certificate import points
from firstline_core.routing.certification import Proof
from firstline_core.telemetry.wording import counted

_UNPROVED_SHOWN = 20


class Scope(StrEnum):
    """The answers that a contract is about."""

    KEPT = "kept"  # the answers kept at the edge
    STREAM = "stream"  # all answers: the accuracy given up against the full model alone


class By(StrEnum):
    CLASS = "class"


ContractOption = Annotated[
    Scope,
    typer.Option(
        help="kept: errors among accepted edge answers; stream: accuracy lost by both tiers together (needs labels)."
    ),
]
ByOption = Annotated[By | None, typer.Option(help="class: a promise and a threshold for each predicted class.")]
GroupsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="CSV", help="File with the columns file and group: a promise for each group; no bundle is written."
    ),
]


@dataclass(frozen=True, slots=True)
class ContractRequest:
    """The contract that the options describe; `plain` is the contract on all accepted edge answers together."""

    scope: Scope
    by: By | None
    groups: Path | None

    @property
    def plain(self) -> bool:
        return self.scope is Scope.KEPT and self.by is None and self.groups is None

    def check(self, contract: KeptContract, out: Path | None) -> None:
        """Raises ConfigError for options that do not go together."""
        if self.scope is Scope.STREAM and (self.by is not None or self.groups is not None or contract == "harm"):
            raise ConfigError("--contract stream is about all answers together; leave out --by, --groups and --loss.")
        if self.by is not None and self.groups is not None:
            raise ConfigError("--by class and --groups are two ways to form groups; name one of them.")
        if self.groups is not None and out is not None:
            raise ConfigError(
                "--out does not go with --groups: a device does not know the group of an input. For a bundle for one "
                "group, certify on the data of that group alone."
            )

    def prove(self, bundle: Bundle, evidence: Evidence, dataset: Dataset, terms: Terms) -> Certification:
        """Returns what the rows prove about this contract.

        Raises:
            ConfigError: arguments out of range, or groups that do not fit the data.
        """
        if self.scope is Scope.STREAM:
            return certify_stream_bundle(bundle, evidence, terms)
        if self.groups is not None:
            return certify_by(bundle, evidence, read_groups(self.groups, dataset), "group", terms)
        if self.by is not None:
            return certify_classes(bundle, evidence, terms)
        return certify_bundle(
            bundle,
            evidence,
            epsilon=terms.epsilon,
            delta=terms.delta,
            contract=terms.contract,
            score=terms.score,
            seed=terms.seed,
            select_fraction=terms.select_fraction,
        )


def sentence(proof: Proof, *, epsilon: float, delta: float, contract: KeptContract) -> str:
    """Returns what was proved, as a sentence."""
    sure = f"with confidence {confidence(delta)}"
    if not isinstance(proof, GroupsProof):
        return _of_stream(proof, f"the tiered accuracy is at most {points(epsilon)} below the full model's, {sure}")
    most = f"at most {percent(epsilon)}"
    what = "disagree" if contract == "disagreement" else "are wrong where the full model is right"
    certified = sum(found.certified for found in proof.groups.values())
    kept = f"That keeps {percent(proof.kept)} of all." if certified else "Escalate everything."
    return (
        f"Certified {certified} of {len(proof.groups)} by {proof.by} on {proof.n} rows: in each, {most} of the kept "
        f"answers {what}, {sure} for all of them together. {kept}"
    )


def print_groups(proof: Proof) -> None:
    """Prints a line for each group; of the groups without a proof, only those closest to one."""
    if not isinstance(proof, GroupsProof):
        return
    unproved = sorted((found.n_needed, name) for name, found in proof.groups.items() if not found.certified)
    hidden = {name for _, name in unproved[_UNPROVED_SHOWN:]}
    made = table(proof.by, ">rows", ">threshold", ">kept %", ">risk at most %", ">kept rows missing, at least")
    for name, found in proof.groups.items():
        if name in hidden:
            continue
        made.add_row(
            name,
            str(found.n),
            "-" if found.threshold is None else f"{found.threshold:.6g}",
            f"{100 * found.kept:.2f}",
            "-" if found.risk_upper is None else f"{100 * found.risk_upper:.3f}",
            str(found.n_needed or ""),
        )
    print_table(made)
    if hidden:
        typer.echo(f"Nothing is proved of {len(hidden)} more, which miss more kept rows; -o json has them all.")


def _of_stream(proof: Proof, promise: str) -> str:
    if proof.threshold is None or proof.risk_upper is None:
        return (
            f"Not certified on {proof.n} rows that {promise}; escalate everything. At least "
            f"{counted(proof.n_needed, 'more row')} would be needed."
        )
    return (
        f"Certified on {proof.n} rows: {promise}, when an answer is kept at a score of at least "
        f"{proof.threshold:.15g}. That keeps {percent(proof.kept)}; the upper bound of the accuracy given up is "
        f"{points(proof.risk_upper)}."
    )
