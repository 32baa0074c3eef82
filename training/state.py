"""What an update depends on, as named tensors: weights, buffers, the optimizer's memory; and back into their places.

The names are those of the bare model, so that a checkpoint knows neither how many ranks wrote it nor how.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from training.checkpoint_format import SavedTensor
from training.errors import CheckpointError

MODEL = "model."
OPTIMIZER = "optimizer."


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and persistent buffers, by name; a weight that two layers share is there once."""
    persistent = model.state_dict(keep_vars=True).keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    return {MODEL + name: tensor for name, tensor in [*model.named_parameters(), *buffers.items()]}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimizer remembers of each weight: moments, counts."""
    return {
        f"{OPTIMIZER}{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def allocate_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, SavedTensor]
) -> dict[str, Tensor]:
    """Room in the optimizer for what was saved, to be filled: by the same names as `optimizer_tensors`."""
    on_device = {
        parameter: bool(group.get("fused") or group.get("capturable"))
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for full, tensor in saved.items():
        name, _, key = full.removeprefix(OPTIMIZER).rpartition(".")
        if not full.startswith(OPTIMIZER) or name not in parameters:
            continue
        parameter = parameters[name]
        dtype = getattr(torch, tensor.dtype)
        if tensor.shape == tuple(parameter.shape):
            room = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        else:
            device = parameter.device if on_device.get(parameter) else torch.device("cpu")
            room = torch.zeros(tensor.shape, dtype=dtype, device=device)
        optimizer.state[parameter][key] = room
    return optimizer_tensors(model, optimizer)


def check_same_model(model: nn.Module, saved: Mapping[str, SavedTensor]) -> None:
    """Make sure that a checkpoint is of this model.

    Raises:
        CheckpointError: a weight is missing, is one too many, or has another shape; the message names it.
    """
    own = {name: tuple(tensor.shape) for name, tensor in model_tensors(model).items()}
    theirs = {name: tensor.shape for name, tensor in saved.items() if name.startswith(MODEL)}
    for name in sorted(own.keys() | theirs.keys()):
        if own.get(name) != theirs.get(name):
            here, there = (_shown(shapes.get(name)) for shapes in (own, theirs))
            raise CheckpointError(f"{name.removeprefix(MODEL)} is {here} in the model and {there} in the checkpoint")


def _shown(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else " x ".join(map(str, shape)) or "a number"
