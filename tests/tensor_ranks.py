"""A rank of a tensor group: its part of a model takes the loss and the gradients of the whole."""

from __future__ import annotations

import torch
from torch import distributed

from schedopt.profiling.hf import build_model
from schedopt.profiling.processes import joined, make_group
from schedopt.profiling.tensor_parallel import split


def compare_with_whole(rank: int, spec: str) -> int:
    """Run the whole model and its part, and require that they agree; return the rank in the group.

    The processes meet as those that torchrun starts.
    """
    model = build_model(spec, batch=2, seq=8, dtype="float64")
    with joined("cpu"):
        group = make_group(distributed.get_world_size())
        assert group is not None
        part = split(model, group)
        whole_loss = model.module(**model.kwargs).loss
        part_loss = part.module(**part.kwargs).loss
        torch.testing.assert_close(part_loss, whole_loss)
        whole_loss.backward()
        expected = {name: each.grad for name, each in model.module.named_parameters()}
        # What is whole on each GPU is one parameter for both.
        model.module.zero_grad(set_to_none=True)
        part_loss.backward()
        for name, parameter in part.module.named_parameters():
            gradient = expected[name]
            assert gradient is not None
            for axis in range(gradient.ndim):
                if parameter.shape[axis] < gradient.shape[axis]:
                    gradient = gradient.chunk(group.degree, axis)[group.rank]
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    assert group.rank == rank
    return group.rank
