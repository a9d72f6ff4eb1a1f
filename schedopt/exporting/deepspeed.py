"""A subclass of DeepSpeed's PipelineModule that cuts where a plan does, and its configuration.

PipelineModule chooses its boundaries in ``_partition_layers``; the subclass sets them instead. It
takes one module for each layer of the chain, without those of the loss, which are its `loss_fn`.
What is computed again is chosen module by module, which no key of the configuration does.

References
----------
DeepSpeed tutorial, *Pipeline parallelism*; ``deepspeed/runtime/pipe/module.py`` and ``engine.py``;
DeepSpeed documentation, *DeepSpeed configuration JSON*.
"""

from __future__ import annotations

import json
from typing import Final

from schedopt.engine import module_count
from schedopt.exporting.own_order import describe, micro_batch_size, own_step
from schedopt.exporting.targets import refuse_copies
from schedopt.plan import Plan
from schedopt.units import printable

FILE: Final = "pipeline.py"
CONFIG_FILE: Final = "deepspeed.json"

_MODULE: Final = '''\
"""{lines}

{use}
"""

from pathlib import Path

from deepspeed import comm
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

CONFIG = str(Path(__file__).with_name("{config}"))
"""For deepspeed.initialize: config. Add what is yours: optimizer, precision, gradient_clipping."""

PARTS = {parts}
"""The first module of each stage, and their number. Stage s is on pipeline rank s."""

LAYERS = (
{layers}
)
"""What each module is, in order."""

TOPOLOGY = {topology}
"""For PipeModelDataParallelTopology: pipeline ranks, GPUs of a tensor group, replicas."""

RECOMPUTE = {recompute}
"""The modules that are computed again in the backward."""


class PlannedPipelineModule(PipelineModule):
    """A pipeline that is cut at `PARTS`, and computes `RECOMPUTE` again.

    Everything else is that of PipelineModule. Give it a topology of your own for other replicas.
    """

    def __init__(self, layers, topology=None, **options):
        topology = topology or PipeModelDataParallelTopology(**TOPOLOGY)
        if topology.world_size() != comm.get_world_size():
            raise ValueError(
                f"the topology has {{topology.world_size()}} GPUs, and {{comm.get_world_size()}} "
                "ranks were started"
            )
        super().__init__(layers, topology=topology, **options)

    def _partition_layers(self, method="uniform"):
        stages = self._topo.get_dim("pipe")
        if stages != len(PARTS) - 1:
            raise ValueError(f"the plan has {{len(PARTS) - 1}} stages, not {{stages}}")
        if len(self._layer_specs) != PARTS[-1]:
            raise ValueError(
                f"the plan cuts {{PARTS[-1]}} modules, not {{len(self._layer_specs)}}"
            )
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = list(PARTS)
        self._set_bounds(start=PARTS[stage], stop=PARTS[stage + 1])

    def _is_checkpointable(self, funcs):
        again = [
            function
            for number, function in enumerate(self.forward_funcs, self._local_start)
            if number in RECOMPUTE
        ]
        return all(any(one is function for one in again) for function in funcs)
'''


def export(plan: Plan, microbatches: int) -> dict[str, str]:
    """Return a Python module with the boundaries and the subclass, and a configuration.

    Raises
    ------
    InputError
        For GPUs with several stages, stages that compute some layers again or hold nothing but the
        loss, for GPUs that are no grid of ranks, replicas and tensor groups, for copies of tied
        weights, for a training step in another order, and for what does not fit in its own.
    """
    refuse_copies(plan, "deepspeed")
    own = own_step(plan, microbatches, "deepspeed")
    chain = plan.chain
    count = module_count(chain) or len(chain.layers)
    first = plan.stages[0]
    # Names of a file end no text and escape nothing in it.
    lines = (line.replace("\\", "/").replace('"', "'") for line in describe(plan, own, "deepspeed"))
    text = _MODULE.format(
        lines="\n".join(lines),
        use="\n".join(_describe_use(plan)),
        config=CONFIG_FILE,
        parts=repr([*(stage.first for stage in plan.stages), count]),
        layers="\n".join(
            f"    {printable(layer.name or f'layer {number}')!r},"
            for number, layer in enumerate(chain.layers[:count])
        ),
        topology=repr(
            {"num_pp": len(plan.stages), "num_mp": first.tensor, "num_dp": len(first.gpus)}
        ),
        recompute=repr(
            tuple(
                layer
                for stage in plan.stages
                for begin, end in sorted(stage.recompute)
                for layer in range(begin, min(end + 1, count))
            )
        ),
    )
    return {
        FILE: text,
        CONFIG_FILE: json.dumps(_configuration(plan, microbatches), indent=2) + "\n",
    }


def _describe_use(plan: Plan) -> list[str]:
    """Return how to use the file, and what is left to do."""
    lines = [
        "Build PlannedPipelineModule(modules, loss_fn=...), and pass it to deepspeed.initialize",
        "with config=CONFIG, on as many GPUs as TOPOLOGY has.",
    ]
    if micro_batch_size(plan) is None:
        lines.append(f"Add train_micro_batch_size_per_gpu to {CONFIG_FILE}: the chain has no size.")
    if plan.stages[0].tensor > 1:
        lines.append("The modules themselves divide their work within a tensor group.")
    return lines


def _configuration(plan: Plan, microbatches: int) -> dict[str, object]:
    """Return what DeepSpeed's configuration says of a plan."""
    first, size = plan.stages[0], micro_batch_size(plan)
    config: dict[str, object] = {}
    if size is not None:
        if not plan.rule.is_given:
            config["train_batch_size"] = size * microbatches
        config["train_micro_batch_size_per_gpu"] = size
    config["gradient_accumulation_steps"] = microbatches // len(first.gpus)
    config["zero_optimization"] = {"stage": int(first.shard == "optimizer")}
    if any(stage.recompute for stage in plan.stages):
        # With use_reentrant a first module that takes tokens would get no gradient itself.
        config["pipeline"] = {"activation_checkpoint_interval": 1, "use_reentrant": False}
    return config
