"""Contact sheets: one image with the decodings of a model drawn on it, each with its number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from firstline.workbench.decodings import DecodingDecision, Trials
from firstline.workbench.recognition.reading import Reading
from firstline_core.errors import FirstlineError
from firstline_core.processing.images import decode
from firstline_core.processing.steps import Decode
from firstline_core.storage.files import naming
from firstline_core.tasks.drawing import COLOURS, size_within, write
from firstline_core.types import Arrays, slice_rows

_PANEL = (640, 1280)  # largest width and height
_COLUMNS = 2


def write_contact_sheet(file: Path, trials: Trials, reading: Reading, decision: DecodingDecision) -> tuple[str, ...]:
    """Writes a picture that shows what each value of a choice finds in the image on which they differ most.

    No picture is written of rows that are no images.

    Args:
        file: PNG to write.
        trials: of the model.
        reading: with the other choices made.
        decision: that a person has to make.

    Returns:
        The values in the order of their numbers, from 1; those that do not fit the model are left out.

    Raises:
        ConfigError: the picture cannot be written.
    """
    choice = decision.choice
    found: dict[str, Arrays] = {}
    for value in choice.values:
        try:
            found[value] = trials.outputs(reading.with_value(choice, value), 8)
        except FirstlineError:
            continue
    row = _most_different(trials, list(found.values()))
    encoded = trials.image(row)
    if encoded is None:
        return tuple(found)
    original = decode(encoded, Decode(), "the image")
    width, height = size_within(original.size, _PANEL)
    panels = []
    for number, (value, outputs) in enumerate(found.items(), 1):
        drawn = trials.task.draw(original, slice_rows(outputs, row, row + 1), 0).resize((width, height))
        write(drawn, (0, height - 40), f"{number}: {choice.meaning(value)}", COLOURS[1])
        panels.append(drawn)
    columns = min(_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    sheet = Image.new("RGB", (columns * width, lines * height), "white")
    for position, panel in enumerate(panels):
        sheet.paste(panel, (position % columns * width, position // columns * height))
    with naming(f"The contact sheet {file}", "written"):
        file.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(file, compress_level=1)  # takes half as long, and photographs become only 4 % larger
    return tuple(found)


def _most_different(trials: Trials, found: list[Arrays]) -> int:
    """Returns the row in which the decodings differ most often."""
    total = sum(trials.task.loss(found[0], other) for other in found[1:])
    return int(np.argmax(total)) if isinstance(total, np.ndarray) else 0
