"""Batch normalisation for the time of a training: models for devices have theirs folded away, and learn badly without.

It is put behind every convolution so that nothing of what the network says changes (Ioffe and Szegedy 2015, "Batch
Normalization", section 3: scale and shift can undo it), and folded into the convolution's weights again at the end.
"""

from __future__ import annotations

from copy import deepcopy
from importlib import import_module
from typing import Any

_EVERY = "normalised"


def normalised(network: Any, rows: Any) -> Any:
    """The network, changed in place, ready for training.

    Args:
        network: a torch.nn.Module with convolutions.
        rows: a tensor as the network takes it; means and variances are taken from it.
    """
    torch = import_module("torch")
    seen: dict[str, tuple[Any, Any]] = {}

    def look(name: str) -> Any:
        def hook(_layer: Any, _given: Any, made: Any) -> None:
            seen[name] = made.mean((0, 2, 3)), made.var((0, 2, 3), correction=0)

        return hook

    hooks = [layer.register_forward_hook(look(name)) for name, layer in _convolutions(network)]
    with torch.no_grad():
        network(rows)
    for hook in hooks:
        hook.remove()
    for name, (mean, variance) in seen.items():
        normalisation = torch.nn.BatchNorm2d(len(mean))
        normalisation.running_mean.copy_(mean)
        normalisation.running_var.copy_(variance)
        with torch.no_grad():
            normalisation.weight.copy_((variance + normalisation.eps).sqrt())
            normalisation.bias.copy_(mean)
        both = torch.nn.Sequential(network.get_submodule(name), normalisation)
        setattr(both, _EVERY, True)
        network.set_submodule(name, both)
    return network.train()


def folded(network: Any) -> Any:
    """A copy of the network with every normalisation folded into the convolution before it."""
    torch = import_module("torch")
    copy = deepcopy(network).eval()
    for name, both in [(name, layer) for name, layer in copy.named_modules() if getattr(layer, _EVERY, False)]:
        copy.set_submodule(name, torch.nn.utils.fusion.fuse_conv_bn_eval(*both))
    return copy


def _convolutions(network: Any) -> list[tuple[str, Any]]:
    torch = import_module("torch")
    return [(name, layer) for name, layer in network.named_modules() if isinstance(layer, torch.nn.Conv2d)]
