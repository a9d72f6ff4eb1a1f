"""The one table of systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final, cast

from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.systems.setting import Setting

Constructor = Callable[[Setting], Plan]
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

    def plan(self, setting: Setting) -> Plan:
        """Make the plan of this system.

        Raises
        ------
        InputError
            If it cannot do the chain or the number of GPUs, with the reason.
        """
        module, _, function = self.constructor.partition(":")
        return cast(Constructor, getattr(import_module(module), function))(setting)


SYSTEMS: Final[tuple[System, ...]] = (
    System(
        "one_gpu",
        "one GPU",
        "schedopt.systems.gradient_accumulation:plan",
        "gradient accumulation",
    ),
    System(
        "dp_blocking",
        "data parallelism, all-reduce after the backward",
        "schedopt.systems.data_parallel:blocking",
        "Patarasuk and Yuan 2009 (ring)",
    ),
    System(
        "dp_overlapped",
        "data parallelism, all-reduce layer by layer",
        "schedopt.systems.data_parallel:overlapped",
        "Li et al. 2020",
    ),
    System(
        "dp_bucketed",
        "data parallelism, all-reduce in buckets",
        "schedopt.systems.data_parallel:bucketed",
        "Li et al. 2020 (PyTorch DDP)",
    ),
    System(
        "dp_by_layer",
        "data parallelism, gradients or what W needs, layer by layer",
        "schedopt.systems.data_parallel_by_layer:plan",
        "Boehm 2022",
    ),
    System(
        "zero_1",
        "ZeRO-1, sharded optimizer state",
        "schedopt.systems.zero:optimizer",
        "Rajbhandari et al. 2020",
    ),
    System(
        "zero_2",
        "ZeRO-2, sharded gradients too",
        "schedopt.systems.zero:gradient",
        "Rajbhandari et al. 2020",
    ),
    System(
        "zero_3",
        "ZeRO-3, sharded parameters too",
        "schedopt.systems.zero:parameter",
        "Rajbhandari et al. 2020",
    ),
    System("gpipe", "GPipe", "schedopt.systems.gpipe:plan", "Huang et al. 2019"),
    System(
        "one_f_one_b_flush",
        "1F1B with a flush",
        "schedopt.systems.one_f_one_b:flush",
        "Narayanan et al. 2021 (PipeDream-Flush), Fan et al. 2021 (DAPPLE)",
    ),
    System(
        "interleaved",
        "interleaved 1F1B, two stages a GPU",
        "schedopt.systems.interleaved:plan",
        "Narayanan et al. 2021 (Megatron-LM)",
    ),
    System("chimera", "Chimera", "schedopt.systems.chimera:plan", "Li and Hoefler 2021"),
    System(
        "zero_bubble", "zero bubble (ZB-H1)", "schedopt.systems.zero_bubble:h1", "Qi et al. 2023"
    ),
    System(
        name="pipedream",
        title="PipeDream",
        constructor="schedopt.systems.pipedream:pipedream",
        source="Narayanan et al. 2019",
    ),
    System(
        name="pipedream_vertical",
        title="PipeDream, vertical sync",
        constructor="schedopt.systems.pipedream:pipedream_vertical",
        source="Narayanan et al. 2019",
    ),
    System(
        name="pipedream_2bw",
        title="PipeDream-2BW",
        constructor="schedopt.systems.pipedream:pipedream_2bw",
        source="Narayanan et al. 2021",
    ),
    System(
        name="pipemare",
        title="PipeMare",
        constructor="schedopt.systems.pipedream:pipemare",
        source="Yang et al. 2021",
    ),
    System(
        name="cdp_v1",
        title="CDP-v1, data parallelism",
        constructor="schedopt.systems.cyclic:cdp_v1",
        source="Fournier and Oyallon",
    ),
    System(
        name="cdp_v1_one_gpu",
        title="CDP-v1, one GPU",
        constructor="schedopt.systems.cyclic:cdp_v1_one_gpu",
        source="Fournier and Oyallon",
    ),
    System(
        name="cdp_v1_mp",
        title="CDP-v1, model parallelism",
        constructor="schedopt.systems.cyclic:cdp_v1_mp",
        source="Fournier and Oyallon",
    ),
    System(
        name="cdp_v1_pp",
        title="CDP-v1, pipeline",
        constructor="schedopt.systems.cyclic:cdp_v1_pp",
        source="Fournier and Oyallon",
    ),
    System(
        name="cdp_v2",
        title="CDP-v2, data parallelism",
        constructor="schedopt.systems.cyclic:cdp_v2",
        source="Fournier and Oyallon",
    ),
    System(
        name="cdp_v2_one_gpu",
        title="CDP-v2, one GPU",
        constructor="schedopt.systems.cyclic:cdp_v2_one_gpu",
        source="Fournier and Oyallon",
    ),
    System(
        name="cdp_v2_mp",
        title="CDP-v2, model parallelism",
        constructor="schedopt.systems.cyclic:cdp_v2_mp",
        source="Fournier and Oyallon",
    ),
    System(
        name="cdp_v2_pp",
        title="CDP-v2, pipeline",
        constructor="schedopt.systems.cyclic:cdp_v2_pp",
        source="Fournier and Oyallon",
    ),
    System(
        name="cdp_v1_zero",
        title="CDP-v1, sharded as ZeRO-3",
        constructor="schedopt.systems.cyclic_zero:cdp_v1",
        source="Fournier and Oyallon",
    ),
    System(
        name="cdp_v2_zero",
        title="CDP-v2, sharded as ZeRO-3",
        constructor="schedopt.systems.cyclic_zero:cdp_v2",
        source="Fournier and Oyallon",
    ),
    System("timeprest", "TiMePReSt", "schedopt.systems.timeprest:timeprest", "Dutta, Chaki and De"),
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
