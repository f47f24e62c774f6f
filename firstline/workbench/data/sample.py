"""One row of a data set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of a data set.

    Attributes:
        file: name for people: of the file, "clip.mp4@30" for frame 30 of a video, "row 3" of a table.
        line: of the file that names it; 0 if none does.
        cluster: samples of one cluster depend on each other, such as frames of one video; "" if none is known.
        row: its position in the table, or the number of its frame.
    """

    file: str
    line: int = 0
    cluster: str = ""
    row: int = 0
