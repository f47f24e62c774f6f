"""Processing of inputs and outputs: the declared steps, and the functions that carry them out."""

from typing import Final

GENERATION: Final = 2
"""Generation of the processing, a part of every cache key.

Raise it with every change after which a step gives other values for some input, although its declaration, and so the
model's digest, is the same: decoding, resizing, softmax. A device's cache survives restarts and upgrades.
"""
