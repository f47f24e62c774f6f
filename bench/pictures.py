"""How the benchmarks' pictures look, and how they are kept: small PNGs that are the same for the same figures."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.figure import Figure as Picture
from PIL import Image

STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.dpi": 90,
    "font.size": 8,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "svg.hashsalt": "firstline",
}


def save(picture: Picture, file: Path, colours: int) -> None:
    """Writes a PNG and forgets the picture; few colours are a third of the bytes, and look the same."""
    drawn = io.BytesIO()
    picture.savefig(drawn, metadata={"Software": None})
    plt.close(picture)
    Image.open(drawn).convert("RGB").quantize(colours).save(file, optimize=True)
