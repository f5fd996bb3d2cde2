"""A model in shards: each process of a run holds its part of every parameter and its moments.

PyTorch's FSDP gathers a layer's parameters for its forward pass and again for its backward pass,
and then adds up its gradients over the processes, each of which keeps its part. It does so for
every micro-batch: an update communicates more than with copies of the model, and no process ever
holds all gradients.
"""

import torch
from torch import Tensor

from relation.nn import Decoder, Execution
from relation.nn.mixers import FullRelationMixer


def shard(model: Decoder, device: torch.device, processes: int, compile: bool) -> None:
    """Leave this process its part of a model, on its device; all processes call it.

    A layer at a time: the model may still be on the CPU. compile: whether torch.compile
    builds each layer. Lambda becomes (1,), as FSDP shards no scalar.
    """
    # Imported on use: a run whose model is whole does without these two seconds.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (processes,))
    for block in model.blocks:
        if isinstance(block.mixer, FullRelationMixer):
            block.mixer.hold_as_vector()
        if compile:
            # Its inside alone: FSDP's hooks run before and after it.
            block.forward = torch.compile(block.forward)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "states")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The sum of the gradients, not their mean; gloo has no other reduction.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process has a part of a tensor only."""
    return hasattr(tensor, "full_tensor")


def part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor: all of one that is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor. Of a sharded one all processes must ask for it together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def as_held(values: Tensor, parameter: Tensor) -> Tensor:
    """All values of a parameter, in any shape of as many, as this process holds the parameter."""
    values = values.reshape(parameter.shape)
    if not is_sharded(parameter):
        return values
    from torch.distributed.tensor import distribute_tensor

    given = parameter.device_mesh, parameter.placements
    # Every process has them all, so that none need be sent.
    return distribute_tensor(values, *given, src_data_rank=None)


@torch.no_grad()
def gathered(model: Decoder, execution: Execution, wanted: bool) -> Decoder | None:
    """A sharded model as a whole one, where it is `wanted`, on its device; all processes call it.

    The parameters alone: what trains them stays in shards.
    """
    device = part(model.embedding.weight).device
    copy = Decoder(model.config, execution).to(device) if wanted else None
    for name, parameter in model.named_parameters():
        values = whole(parameter)
        if copy is not None:
            own = copy.get_parameter(name)
            own.copy_(values.reshape(own.shape))
    return copy
