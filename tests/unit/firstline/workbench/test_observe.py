import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.observe import observe
from firstline_core.bundle.loading import Prediction, load_model
from firstline_core.bundle.store import open_bundle
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.classification import LOGITS, Classification
from firstline_core.types import PROBABILITIES, Arrays

_DIGITS = Path(__file__).parents[4] / "models/digits"
_CLASSES = 10_000


class WideModel:
    """A model with many classes, whose answers are large."""

    task = Classification(("",) * _CLASSES)
    model = SimpleNamespace(shows_logits=True)
    runtime = SimpleNamespace(provider="CPU")

    def predict(self, inputs: Arrays) -> Prediction:
        row = np.full((1, _CLASSES), len(inputs["image"][0]), np.float32)
        return Prediction({PROBABILITIES: row}, {LOGITS: -row})


@pytest.mark.parametrize("with_logits", [False, True])
def test_memory_is_that_of_the_returned_arrays(with_logits: bool) -> None:
    model: Any = WideModel()
    dataset = open_dataset(_DIGITS / "heldout", 100)
    tracemalloc.start()
    try:
        observed = observe(
            [model], (open_bundle(_DIGITS / "bundle").manifest.inputs[0],), dataset, with_evidence=[model] * with_logits
        )
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    [answers] = observed.answers
    assert np.array_equal(answers.probabilities[:, 0], observed.sizes)
    assert set(answers.evidence) == ({LOGITS} if with_logits else set())
    if with_logits:
        assert np.array_equal(answers.evidence[LOGITS], -answers.probabilities)
    assert peak_bytes < (1 + with_logits) * answers.probabilities.nbytes + 2_000_000


def test_answers_are_those_of_the_model_to_each_image() -> None:
    bundle, dataset = open_bundle(_DIGITS / "bundle"), open_dataset(_DIGITS / "heldout", 20)
    model = load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())
    observed = observe([model], (bundle.manifest.inputs[0],), dataset, with_evidence=[model])
    images = list(dataset.contents())
    expected = model.predict({"image": np.array(images, object)})
    [answers] = observed.answers
    assert observed.sizes.tolist() == [len(image) for image in images]
    np.testing.assert_allclose(answers.probabilities, expected.outputs[PROBABILITIES], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(answers.evidence[LOGITS], expected.evidence[LOGITS], rtol=1e-4, atol=1e-4)
    assert (answers.seconds > 0).all()
