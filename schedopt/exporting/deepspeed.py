"""A subclass of DeepSpeed's PipelineModule that cuts where a plan does.

PipelineModule chooses its boundaries in ``_partition_layers``; the subclass sets them instead. It
takes one module for each layer of the chain, without those of the loss, which are its `loss_fn`.

References
----------
DeepSpeed tutorial, *Pipeline parallelism*; ``deepspeed/runtime/pipe/module.py``.
"""

from __future__ import annotations

from typing import Final

from schedopt.engine import module_count
from schedopt.exporting.own_order import describe, micro_batch_size, own_step
from schedopt.exporting.targets import refuse_copies
from schedopt.plan import Plan
from schedopt.units import printable

FILE: Final = "pipeline.py"

_MODULE: Final = '''\
"""{lines}
"""

from deepspeed.pipe import PipelineModule

PARTS = {parts}
"""The first module of each stage, and their number. Stage s is on pipeline rank s."""

LAYERS = (
{layers}
)
"""What each module is, in order."""

CONFIG = {{
{config}
}}
"""For the configuration of DeepSpeed."""

TOPOLOGY = {topology}
"""For deepspeed.runtime.pipe.topology.PipeModelDataParallelTopology."""

RECOMPUTE = {recompute}
"""For PipelineModule: activation_checkpoint_interval. 1: every layer; 0: none."""


class PlannedPipelineModule(PipelineModule):
    """A pipeline that is cut at `PARTS`; everything else is that of PipelineModule."""

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
'''


def export(plan: Plan, microbatches: int) -> dict[str, str]:
    """Return a Python module with the boundaries and the subclass.

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
    replicas = len(first.gpus)
    config: dict[str, object] = {"gradient_accumulation_steps": microbatches // replicas}
    if first.shard == "optimizer":
        config["zero_optimization"] = {"stage": 1}
    topology = {
        "num_pp": len(plan.stages),
        "num_mp": first.tensor,
        "num_dp": replicas,
    }
    size = micro_batch_size(plan)
    if size is not None:
        config["train_micro_batch_size_per_gpu"] = size
    # Names of a file end no text and escape nothing in it.
    lines = (line.replace("\\", "/").replace('"', "'") for line in describe(plan, own, "deepspeed"))
    text = _MODULE.format(
        lines="\n".join(lines),
        parts=repr([*(stage.first for stage in plan.stages), count]),
        layers="\n".join(
            f"    {printable(layer.name or f'layer {number}')!r},"
            for number, layer in enumerate(chain.layers[:count])
        ),
        topology=repr(topology),
        recompute=int(any(stage.recompute for stage in plan.stages)),
        config="\n".join(f'    "{name}": {value},' for name, value in config.items()),
    )
    return {FILE: text}
