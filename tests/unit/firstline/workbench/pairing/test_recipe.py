import tomllib

import pytest

from firstline.workbench.pairing.recipe import recipe_text
from firstline_core.tasks import AnyTask
from firstline_core.tasks.anomaly import Anomaly
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.installed import read_task
from firstline_core.tasks.regression import Regression
from firstline_core.tasks.segmentation import Segmentation

TASKS: tuple[AnyTask, ...] = (
    Anomaly(),
    Detection(("car", "bus")),
    Regression(("price", "\u00fcbrig"), absolute=1e-7, relative=0.05),
    Segmentation(("road", "sky"), width=8, height=6),
)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_a_recipe_declares_the_task_of_its_pair(task: AnyTask) -> None:
    recipe = tomllib.loads(recipe_text("pair", task, "the labels file", {}, task.score_kinds[0]))
    labels = {"labels": list(task.labels)} if "labels" in recipe else {}
    assert read_task({"kind": task.kind, **recipe[task.kind], **labels}) == task


def test_a_classifier_has_labels_and_no_table() -> None:
    recipe = tomllib.loads(recipe_text("pair", Classification(("no", "yes")), "the labels file", {}, "margin"))
    assert recipe.keys() == {"name", "version", "labels", "policy"}
