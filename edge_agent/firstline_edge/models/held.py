"""The models that this device holds, by name and version. `loading.py` opens them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import Struct

from firstline_core.bundle.manifest import Manifest
from firstline_core.bundle.store import Bundle
from firstline_core.errors import InvalidTensorError
from firstline_core.protocol.tensors import shown
from firstline_core.runtime.select import PLATFORMS
from firstline_core.types import PROBABILITIES, InferRequest, ModelMetadata, Tensor
from firstline_edge.models.edge_model import EdgeModel
from firstline_edge.requests.model_output import ModelOutput

_NONE: Mapping[str, HeldModel] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class HeldModel:
    """A bundle on this device, with one edge variant.

    If several variants are held, there is one `HeldModel` for each, and `Models` has the current one; a request keeps
    the one that it was given (`VariantChoice`).

    Args:
        bundle: opened and checked.
        edge: None if no variant runs here; `problem` says why.
        problem: one sentence, or "".
        variants: all that are held of the bundle, this one among them; None where it is alone.

    Attributes:
        manifest, version: the bundle's, at hand for every request.
    """

    bundle: Bundle
    edge: EdgeModel | None
    problem: str = ""
    variants: VariantSet | None = None
    manifest: Manifest = field(init=False)
    version: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "manifest", self.bundle.manifest)
        object.__setattr__(self, "version", str(self.manifest.version))

    @property
    def every(self) -> tuple[HeldModel, ...]:
        """Each variant of the bundle that is loaded."""
        return (self,) if self.variants is None else self.variants.loaded

    def group(self, output: ModelOutput | None) -> str | None:
        """The predicted class, where the certificate promises by class; None where all answers are held alike."""
        edge = self.edge
        if edge is None or output is None or (certificate := edge.certificate) is None or not certificate.by:
            return None
        return self.manifest.labels[int(output.probabilities.argmax())]

    def tensor(self, request: InferRequest) -> Tensor:
        """The bundle's one input.

        Raises:
            InvalidTensorError: another input, or an output that there is not.
        """
        wanted = self.manifest.input.name
        if len(request.inputs) != 1 or request.inputs[0].name != wanted:
            given = ", ".join(shown(tensor.name) for tensor in request.inputs[:5])
            raise InvalidTensorError(f"Model '{request.model}' takes one input, '{wanted}'; the request has: {given}.")
        for output in request.outputs:
            if output.name != PROBABILITIES:
                raise InvalidTensorError(
                    f"Model '{request.model}' has no output {shown(output.name)}; it has: {PROBABILITIES}."
                )
        return request.inputs[0]

    @property
    def metadata(self) -> ModelMetadata:
        return ModelMetadata(
            name=self.manifest.name,
            versions=(self.version,),
            platform=PLATFORMS[self.edge.loaded.model.runtime] if self.edge else "firstline",
            inputs=(self.manifest.input_spec,),
            outputs=(self.manifest.output_spec,),
            labels=self.manifest.labels,
        )


class VariantChoice(Struct, frozen=True, eq=False):
    """The variant that a request was given; the request keeps it.

    Attributes:
        model: the bundle with this variant.
        variant: id of the variant.
        why: why it is not the best one; "" if it is.
        sheds: why nothing is computed here now; "" if it is.
    """

    model: HeldModel
    variant: str
    why: str = ""
    sheds: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the decision log."""
        fields = {"variant": self.variant, "variant_why": self.why, "sheds": self.sheds}
        return {key: value for key, value in fields.items() if value}


class VariantSet(Protocol):
    """Several variants of a bundle that are held at once; the agent's adaptation implements it."""

    @property
    def loaded(self) -> tuple[HeldModel, ...]:
        """The loaded variants, best first."""

    @property
    def depth(self) -> float:
        """How far down its ladder the model stands."""

    def choose(
        self, request: InferRequest, left_ms: float, link_ms: float, escalation_mj: float = 0.0
    ) -> VariantChoice:
        """Chooses the variant that answers a request."""

    def describe(self) -> dict[str, Any]:
        """Returns the JSON object for `status`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A folder that should have been a bundle."""

    path: Path
    message: str


class Models:
    """All bundles of this device, by name and version; the newest version is the current one.

    Attributes:
        problems: folders that should have been bundles.
        away: versions that are known and not held, each with the reason.
    """

    def __init__(self, held: Iterable[HeldModel], problems: Iterable[Problem] = ()) -> None:
        self._held: dict[str, dict[str, HeldModel]] = {}
        self._current: dict[str, HeldModel] = {}
        for model in sorted(held, key=lambda model: model.manifest.version):
            self._held.setdefault(model.manifest.name, {})[model.version] = model
            self._current[model.manifest.name] = model
        self.problems = tuple(problems)
        self.away: dict[tuple[str, int], str] = {}

    def put(self, model: HeldModel) -> HeldModel | None:
        """Adds or replaces a model; returns the model that had this version before."""
        name, versions = model.manifest.name, dict(self._held.get(model.manifest.name, {}))
        before = versions.get(model.version)
        versions[model.version] = model
        self._hold(name, dict(sorted(versions.items(), key=lambda each: int(each[0]))))
        self.away.pop((name, model.manifest.version), None)
        return before

    def take(self, model: HeldModel, why: str) -> None:
        """Holds a model no more; requests under way keep it until they are answered."""
        name = model.manifest.name
        self._hold(name, {version: held for version, held in self._held[name].items() if held is not model})
        self.away[name, model.manifest.version] = why

    def find(self, name: str, version: str = "") -> HeldModel | None:
        """The model, or None where this device does not hold it in that version ("" is the current one)."""
        return self._held.get(name, _NONE).get(version) if version else self._current.get(name)

    def _hold(self, name: str, versions: dict[str, HeldModel]) -> None:
        if versions:
            self._held[name], self._current[name] = versions, versions[next(reversed(versions))]
        else:
            del self._held[name], self._current[name]

    @property
    def all(self) -> tuple[HeldModel, ...]:
        return tuple(model for versions in self._held.values() for model in versions.values())

    def close(self) -> None:
        """Frees the runtimes; calling it twice is harmless."""
        for model in [each for held in self.all for each in held.every]:
            if model.edge is not None:
                model.edge.loaded.close()
