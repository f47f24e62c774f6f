"""The guides and the pages of tasks, followed word by word."""

from pathlib import Path

import pytest
from support.readme import Reader

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "page",
    [
        "get-started/your-model.md",
        "how-to/enrol-devices.md",
        "how-to/restore-a-backup.md",
        "how-to/metered-links.md",
        "how-to/certify-without-labels.md",
        "how-to/from-triton.md",
        "how-to/rotate-keys.md",
        "concepts/policies.md",
        "reference/storage.md",
    ],
)
def test_the_pages_are_true(reader: Reader, page: str) -> None:
    reader.follow((CHECKOUT / "docs" / page).read_text())
    assert reader.executed


@pytest.mark.parametrize(
    "page",
    [
        "tasks/anomaly.md",
        "tasks/audio.md",
        "tasks/classification.md",
        "reference/data.md",
        "tasks/detection.md",
        "tasks/embedding.md",
        "how-to/own-task.md",
        "tasks/regression.md",
        "tasks/segmentation.md",
        "tasks/tensors.md",
        "tasks/text-classification.md",
        "tasks/text.md",
    ],
)
def test_the_pages_of_tasks_show_exact_numbers(reader: Reader, page: str) -> None:
    reader.exact = True
    reader.follow((CHECKOUT / "docs" / page).read_text())
    assert reader.executed
