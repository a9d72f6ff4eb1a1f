"""The one table of systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.simulation.delaying import delay_transfers
from schedopt.stored import find_function
from schedopt.systems.config import SystemConfig

Constructor = Callable[[SystemConfig], Plan]
"""Makes a plan; raises `InputError` for a chain or a number of GPUs that it cannot do."""


@dataclass(frozen=True)
class System:
    """A way to train that people know by a name.

    Parameters
    ----------
    name : str
        What one types.
    title : str
        What one reads.
    constructor : str
        "module:function".
    source : str
        Who described it.
    """

    name: str
    title: str
    constructor: str
    source: str

    def plan(self, config: SystemConfig) -> Plan:
        """Make the plan of this system, which sends activations and gradients as late as it can.

        Raises
        ------
        InputError
            If it cannot do the chain or the number of GPUs, with the reason.
        """
        return delay_transfers(cast(Constructor, find_function(self.constructor))(config))


_TABLE: Final = (
    # What one types, what one reads, module:function in this room, who described it.
    ("one_gpu", "one GPU", "flushes:one_gpu", "gradient accumulation"),
    (
        "dp_blocking",
        "data parallelism, all-reduce after the backward",
        "data_parallel:blocking",
        "Patarasuk and Yuan 2009 (ring)",
    ),
    (
        "dp_overlapped",
        "data parallelism, all-reduce layer by layer",
        "data_parallel:overlapped",
        "Li et al. 2020",
    ),
    (
        "dp_bucketed",
        "data parallelism, all-reduce in buckets",
        "data_parallel:bucketed",
        "Li et al. 2020 (PyTorch DDP)",
    ),
    (
        "dp_by_layer",
        "data parallelism, gradients or what W needs, layer by layer",
        "data_parallel_by_layer:plan",
        "Boehm 2022",
    ),
    ("zero_1", "ZeRO-1, sharded optimizer state", "zero:optimizer", "Rajbhandari et al. 2020"),
    ("zero_2", "ZeRO-2, sharded gradients too", "zero:gradient", "Rajbhandari et al. 2020"),
    ("zero_3", "ZeRO-3, sharded parameters too", "zero:parameter", "Rajbhandari et al. 2020"),
    ("gpipe", "GPipe", "flushes:gpipe", "Huang et al. 2019"),
    (
        "one_f_one_b_flush",
        "1F1B with a flush",
        "flushes:one_f_one_b",
        "Narayanan et al. 2021 (PipeDream-Flush), Fan et al. 2021 (DAPPLE)",
    ),
    (
        "interleaved",
        "interleaved 1F1B, two stages a GPU",
        "flushes:interleaved",
        "Narayanan et al. 2021 (Megatron-LM)",
    ),
    ("chimera", "Chimera", "flushes:chimera", "Li and Hoefler 2021"),
    ("zero_bubble", "zero bubble (ZB-H1)", "flushes:zero_bubble", "Qi et al. 2023"),
    ("pipedream", "PipeDream", "pipedream:pipedream", "Narayanan et al. 2019"),
    (
        "pipedream_vertical",
        "PipeDream, vertical sync",
        "pipedream:pipedream_vertical",
        "Narayanan et al. 2019",
    ),
    ("pipedream_2bw", "PipeDream-2BW", "pipedream:pipedream_2bw", "Narayanan et al. 2021"),
    ("pipemare", "PipeMare", "pipedream:pipemare", "Yang et al. 2021"),
    ("cdp_v1", "CDP-v1, data parallelism", "cyclic:cdp_v1", "Fournier and Oyallon"),
    ("cdp_v1_one_gpu", "CDP-v1, one GPU", "cyclic:cdp_v1_one_gpu", "Fournier and Oyallon"),
    ("cdp_v1_mp", "CDP-v1, model parallelism", "cyclic:cdp_v1_mp", "Fournier and Oyallon"),
    ("cdp_v1_pp", "CDP-v1, pipeline", "cyclic:cdp_v1_pp", "Fournier and Oyallon"),
    ("cdp_v2", "CDP-v2, data parallelism", "cyclic:cdp_v2", "Fournier and Oyallon"),
    ("cdp_v2_one_gpu", "CDP-v2, one GPU", "cyclic:cdp_v2_one_gpu", "Fournier and Oyallon"),
    ("cdp_v2_mp", "CDP-v2, model parallelism", "cyclic:cdp_v2_mp", "Fournier and Oyallon"),
    ("cdp_v2_pp", "CDP-v2, pipeline", "cyclic:cdp_v2_pp", "Fournier and Oyallon"),
    ("cdp_v1_zero", "CDP-v1, sharded as ZeRO-3", "cyclic_zero:cdp_v1", "Fournier and Oyallon"),
    ("cdp_v2_zero", "CDP-v2, sharded as ZeRO-3", "cyclic_zero:cdp_v2", "Fournier and Oyallon"),
    ("timeprest", "TiMePReSt", "timeprest:timeprest", "Dutta, Chaki and De"),
)

SYSTEMS: Final = tuple(
    System(name, title, f"schedopt.systems.{constructor}", source)
    for name, title, constructor, source in _TABLE
)


def find_system(name: str) -> System:
    """Return a system by name.

    Raises
    ------
    InputError
        With the names that there are.
    """
    for system in SYSTEMS:
        if system.name == name:
            return system
    raise InputError(
        f"{name!r} is not known",
        field="systems",
        way_out=f"Choose {', '.join(system.name for system in SYSTEMS)}",
    )
