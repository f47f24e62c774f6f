"""Saves a training after every epoch, so that it can be resumed. Needs `[train]`.

Each training has one file, named by the digest of everything that the student depends on; a training that differs in
anything starts over. PyTorch loads only weights and plain values from it, so the file cannot run code.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from firstline_core.errors import ConfigError
from firstline_core.storage.files import write_whole
from firstline_core.types import Array

_BLOCK_ROWS = 256


@dataclass(frozen=True, slots=True)
class Training:
    """The state that changes from epoch to epoch.

    Attributes:
        network: a torch.nn.Module.
        optimiser: of its parameters.
        schedule: of the optimiser's rate.
        random: source of order and views.
    """

    network: Any
    optimiser: Any
    schedule: Any
    random: np.random.Generator

    def save(self, place: Path, epochs: int) -> None:
        """Writes the state after this number of epochs, atomically.

        Raises:
            ConfigError: it cannot be written.
        """
        torch = import_module("torch")
        stream = io.BytesIO()
        torch.save(
            {
                "epochs": epochs,
                "network": self.network.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "schedule": self.schedule.state_dict(),
                "random": json.dumps(self.random.bit_generator.state),
                "torch_random": torch.get_rng_state(),
            },
            stream,
        )
        try:
            write_whole(place, stream.getvalue())
        except OSError as error:
            raise ConfigError(f"The training cannot be kept in {place}: {error.strerror or error}.") from error

    def resume(self, place: Path) -> int:
        """Restores the state.

        Returns:
            The number of finished epochs; 0 if there is no file.

        Raises:
            ConfigError: the file is damaged or of something else.
        """
        torch = import_module("torch")
        try:
            known = torch.load(place, weights_only=True)
            self.network.load_state_dict(known["network"])
            self.optimiser.load_state_dict(known["optimiser"])
            self.schedule.load_state_dict(known["schedule"])
            self.random.bit_generator.state = json.loads(known["random"])
            torch.set_rng_state(known["torch_random"])
            return int(known["epochs"])
        except FileNotFoundError:
            return 0
        except Exception as error:  # PyTorch raises whatever comes
            raise ConfigError(f"{place} is damaged; remove it to start the training over.") from error


def checkpoint_file(folder: Path, rows: Array, dependencies: Iterable[bytes]) -> Path:
    """Returns the file of a training.

    Args:
        folder: of all trainings.
        rows: (n, ...) that it learns from.
        dependencies: everything else that the student depends on.
    """
    found = hashlib.sha256(f"{rows.dtype} {rows.shape}".encode())
    for first in range(0, len(rows), _BLOCK_ROWS):
        found.update(np.ascontiguousarray(rows[first : first + _BLOCK_ROWS]).data)
    for part in dependencies:
        found.update(hashlib.sha256(part).digest())
    return folder / f"training-{found.hexdigest()[:32]}.pt"
