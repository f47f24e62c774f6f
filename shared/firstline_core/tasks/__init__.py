"""Tasks: what models answer, and how answers are scored and compared. One module of pure functions per task.

Modules
    base                what every task provides
    classification      one probability per label
    detection           boxes with classes and scores
"""

from __future__ import annotations

from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection

AnyTask = Classification | Detection
"""The task of a manifest, told apart by its `kind`."""
