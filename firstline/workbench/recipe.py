"""Bundle recipes: a TOML file that declares a bundle, for what flags would say clumsily.

    name = "cats"
    version = 3
    labels = "labels.txt"          # files lie relative to the models' folder, by default the recipe's own
    labels_skip = 1                # leading lines that are no labels, e.g. a background class
    preprocess = "decode:RGB,resize:224x224,scale"      # for every model that does not say its own
    postprocess = "softmax"

    [[edge]]                       # variants in order of preference
    file = "small_int8.tflite"
    preprocess = "decode:RGB,resize:96x96,scale"
    postprocess = ""               # this one ends in a softmax of its own

    [full]
    file = "large.onnx"

    [policy]
    score = "max_probability"      # or margin, entropy, graph:FILE.onnx
    temperature = 1.5
    threshold = 0.9

A model may also have `id`, `precision`, `input`, `output` and `measured`; see `spec.ModelSpec`. Steps are spelled as
`step_syntax.py` describes.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec, ScoreKind, read_labels
from firstline.workbench.step_syntax import parse_postprocess, parse_preprocess
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import InputSpec
from firstline_core.storage import settings

SCORES: tuple[ScoreKind, ...] = ("max_probability", "margin", "entropy")
_GRAPH = "graph:"


class _Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file: str
    id: str = ""
    precision: str = ""
    preprocess: str | None = None
    postprocess: str | None = None
    input: str = ""
    output: str = ""
    measured: dict[str, float] = {}


class _Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    score: str = "max_probability"
    temperature: float = 1.0
    threshold: float = 1.0


class _Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    version: int
    labels: str
    labels_skip: int = 0
    preprocess: str = ""
    postprocess: str = ""
    input: InputSpec | None = None
    edge: tuple[_Model, ...] = ()
    full: _Model | None = None
    policy: _Policy = _Policy()


def read_recipe(file: Path, models: Path | None = None) -> BundleSpec:
    """Reads a recipe.

    Args:
        file: TOML, see the module.
        models: where the recipe's paths start; None means the recipe's own folder.

    Raises:
        ConfigError: names file, line and key of what makes no sense.
    """
    if not file.exists():
        raise ConfigError(f"There is no recipe {file}; name another with --recipe.")
    recipe = settings.load(_Recipe, file=file)
    folder = models if models is not None else file.parent

    def model(said: _Model) -> ModelSpec:
        before = said.preprocess if said.preprocess is not None else recipe.preprocess
        after = said.postprocess if said.postprocess is not None else recipe.postprocess
        return ModelSpec(
            file=folder / said.file,
            preprocess=parse_preprocess(before, folder),
            postprocess=parse_postprocess(after, folder),
            id=said.id,
            precision=said.precision,
            input=said.input,
            output=said.output,
            measured=said.measured,
        )

    return BundleSpec(
        name=recipe.name,
        version=recipe.version,
        labels=read_labels(folder / recipe.labels, recipe.labels_skip),
        edge=tuple(model(said) for said in recipe.edge),
        full=model(recipe.full) if recipe.full is not None else None,
        policy=PolicySpec(parse_score(recipe.policy.score, folder), recipe.policy.temperature, recipe.policy.threshold),
        input=recipe.input,
    )


def parse_score(text: str, folder: Path = Path()) -> ScoreKind | Path:
    """A score's kind, or the file of `graph:FILE.onnx`.

    Raises:
        ConfigError: neither.
    """
    for kind in SCORES:
        if text == kind:
            return kind
    if text.startswith(_GRAPH) and text != _GRAPH:
        return folder / text.removeprefix(_GRAPH)
    if text in ("energy", "learned"):
        raise ConfigError(
            f"A bundle starts without the score '{text}', which takes data: make it with another one, then "
            f"`firstline certify BUNDLE --data DIR --score {text} ... --out NEW`."
        )
    raise ConfigError(f"'{text}' is no score; there are: {', '.join(SCORES)} and graph:FILE.onnx.")
