"""Random valid plans with replicas whose weights, gradients or optimizer states are sharded."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from math import lcm
from typing import get_args

from hypothesis import assume, reject
from hypothesis import strategies as st

from schedopt import (
    Chain,
    Layer,
    Operation,
    Pattern,
    Plan,
    Platform,
    Rule,
    Scope,
    Stage,
    Transfer,
    check,
)
from schedopt.plan import Kind, place_in_period
from schedopt.rule import BackwardReads, ForwardReads
from schedopt.stage import Shard
from schedopt.transfer import Tensor
from tests.random_plans import AMPLE, Timetable, recomputed_runs, small

Ends = tuple[int, int]
SHARDS: tuple[Shard, ...] = ("parameter", "gradient", "optimizer", "none")


@st.composite
def _layers(draw: st.DrawFn) -> Layer:
    parameters, gradients, optimizer = (draw(st.integers(0, 7)) for _ in range(3))
    return Layer(
        forward_ns=draw(small),
        backward_ns=draw(small),
        weight_bytes=parameters + gradients + optimizer + draw(small),
        activation_bytes=draw(small),
        saved_bytes=draw(small),
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        optimizer_bytes=optimizer,
        backward_input_ns=draw(small),
        backward_weight_ns=draw(small),
    )


@st.composite
def sharded_plans(draw: st.DrawFn) -> Plan:
    """Draw a plan on GPUs with ample memory, of which every period is a whole number of updates."""
    gpus = draw(st.sampled_from([3, 2]))
    count = draw(st.integers(1, 2))
    chain = Chain(layers=tuple(draw(_layers()) for _ in range(count)))
    every = draw(st.sampled_from([3, 4, 2, 1]))
    found = []
    for number in range(count):
        named = draw(st.permutations(range(gpus)))[: draw(st.sampled_from([3, 2, 1]))]
        if draw(st.integers(0, 3)) == 0:
            # A GPU may run a larger share.
            named = [*named, named[0]]
        again = draw(recomputed_runs(number, number + 1)) if draw(st.booleans()) else ()
        found.append(
            Stage(
                layers=(number, number),
                gpus=tuple(named),
                recompute=again,
                shard=draw(st.sampled_from(SHARDS)),
            )
        )
    platform = Platform(gpus, AMPLE)
    if draw(st.booleans()):
        latency = draw(st.integers(0, 1))
        platform = Platform(gpus, AMPLE, bandwidth=10**9, latency=latency, duplex="half")
        if draw(st.booleans()):
            platform = Platform(gpus, AMPLE, bandwidth=10**9, latency=latency, duplex="full")
    maker = _Maker(
        draw=draw,
        chain=chain,
        platform=platform,
        stages=tuple(found),
        every=every,
        k=lcm(every, *(len(stage.gpus) for stage in found)),
        period=draw(st.sampled_from([300, 150, 80, 40])),
    )
    maker.make()
    return maker.finish()


@dataclass
class _Maker:
    """Places micro-batch after micro-batch, each operation behind the weights that it needs."""

    draw: st.DrawFn
    chain: Chain
    platform: Platform
    stages: tuple[Stage, ...]
    every: int
    k: int
    period: int
    operations: list[Operation] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    through: dict[tuple[int, int], int] = field(default_factory=dict)

    def make(self) -> None:
        self.table = Timetable(self.platform, self.k, self.period, self.k)
        count = len(self.stages)
        self.split = [self.draw(st.booleans()) for _ in range(count)]
        self.chunks = [self.draw(st.sampled_from([3, 2, 4, 1])) for _ in range(count)]
        # Where everything comes together that is not sharded.
        self.roots = [self.draw(st.sampled_from(stage.gpus)) for stage in self.stages]
        self.copies: dict[tuple[int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
        self.update_ns = self.draw(st.integers(0, 3)) if self.may_update() else 0
        clock = 0
        for j in range(self.k):
            clock += self.draw(st.integers(0, 4))
            self.run_micro_batch(j, clock)
        for stage in range(count):
            made = {(gpu, chunk): 0 for gpu in range(3) for chunk in range(4)}
            for mini_batch in range(self.k // self.every):
                self.reduce(stage, mini_batch, made)

    def may_update(self) -> bool:
        """Whether each home of a chunk runs a micro-batch of each mini-batch."""
        return all(
            self.home(stage, chunk) in self.members(stage, mini_batch)
            for stage in range(len(self.stages))
            for chunk in range(self.chunks[stage])
            for mini_batch in range(self.k // self.every)
        )

    def home(self, stage: int, chunk: int) -> int:
        if self.shard(stage) == "none":
            return self.roots[stage]
        return self.stages[stage].gpu(stage + chunk)

    def shard(self, stage: int) -> Shard:
        return self.stages[stage].shard

    def members(self, stage: int, mini_batch: int) -> set[int]:
        first = mini_batch * self.every
        return {self.stages[stage].gpu(i) for i in range(first, first + self.every)}

    def part(self, total: int, stage: int, chunk: int) -> int:
        count = self.chunks[stage]
        return total * (chunk + 1) // count - total * chunk // count

    def wait(self) -> int:
        return self.draw(st.integers(0, 4))

    def run(self, kind: Kind, stage: int, j: int, ready: int, length: int) -> int:
        """Place an operation, and return its start."""
        gpu = self.stages[stage].gpu(j)
        start = self.table.place(ready, [((("gpu", gpu),), length)])
        assume(start is not None)
        assert start is not None
        begin, shift = place_in_period(start, j, self.k, self.period)
        self.operations.append(Operation(kind=kind, stage=stage, shift=shift, start_ns=begin))
        return start

    def move(self, item: Transfer, count: int, ends: Ends, j: int, ready: int) -> tuple[int, int]:
        """Place a transfer, and return its start and end."""
        length = self.platform.transfer_ns(count, *ends)
        start = self.table.place(ready, [(self.platform.route(*ends), length)])
        assume(start is not None)
        assert start is not None
        begin, shift = place_in_period(start, j, self.k, self.period)
        self.transfers.append(replace(item, shift=shift, start_ns=begin))
        return start, start + length

    def carry(
        self, tensor: Tensor, stage: int, chunk: int, ends: Ends, j: int, ready: int
    ) -> tuple[int, int]:
        """Place a transfer of weights or their gradients from GPU to GPU."""
        gpus, layer = self.stages[stage].gpus, self.chain.layers[stage]
        source, target = (gpus.index(gpu) - j % len(gpus) for gpu in ends)
        if tensor == "weights" and self.shard(stage) == "parameter":
            target = 0
        item = Transfer(
            tensor=tensor,
            stage=stage,
            shift=0,
            start_ns=0,
            source=source,
            target=target,
            chunk=chunk,
            chunks=self.chunks[stage],
            mode="copy" if tensor == "weights" else "reduce",
        )
        total = layer.parameter_bytes if tensor == "weights" else layer.gradient_bytes
        return self.move(item, self.part(total or 0, stage, chunk), ends, j, ready)

    def run_micro_batch(self, j: int, clock: int) -> None:
        last = len(self.stages) - 1
        started: dict[int, int] = {}
        ends: dict[int, int] = {}
        for stage in range(last + 1):
            layer = self.chain.layers[stage]
            clock = self.read("F", stage, j, clock, layer.forward_ns, started)
            ends[stage] = clock
            if stage < last:
                clock = self.send("activation", stage, j, clock)
        for stage in reversed(range(last + 1)):
            layer = self.chain.layers[stage]
            if stage < last:
                clock = self.send("gradient", stage, j, clock)
            if self.stages[stage].recompute:
                recompute_end = self.read("R", stage, j, ends[stage], layer.forward_ns, started)
                clock = max(clock, recompute_end)
            if self.split[stage]:
                clock = self.read("I", stage, j, clock, layer.backward_input_ns or 0, started)
                done = layer.backward_weight_ns or 0
                self.through[stage, j] = self.read("W", stage, j, clock, done, started)
            else:
                clock = self.read("B", stage, j, clock, layer.backward_ns, started)
                self.through[stage, j] = clock

    def send(self, tensor: Tensor, stage: int, j: int, ready: int) -> int:
        here, there = self.stages[stage].gpu(j), self.stages[stage + 1].gpu(j)
        if not self.platform.route(here, there):
            return ready
        ends = (here, there) if tensor == "activation" else (there, here)
        item = Transfer(tensor=tensor, stage=stage, shift=0, start_ns=0)
        count = self.chain.layers[stage].activation_bytes
        return self.move(item, count, ends, j, ready + self.wait())[1]

    def read(
        self, kind: Kind, stage: int, j: int, ready: int, length: int, started: dict[int, int]
    ) -> int:
        """Gather what an operation reads, run it, and return its end."""
        gpu = self.stages[stage].gpu(j)
        ready += self.wait()
        coming: list[tuple[int, int]] = []
        if self.shard(stage) == "parameter":
            for chunk in range(self.chunks[stage]):
                if self.home(stage, chunk) != gpu:
                    end = self.gather(stage, chunk, gpu, j, ready, started.get(stage))
                    coming.append((chunk, end))
                    ready = max(ready, end)
        start = self.run(kind, stage, j, ready, length)
        started[stage] = start
        for chunk, arrived in coming:
            self.copies[stage, chunk, j // self.every].append((gpu, arrived, start + length))
        return start + length

    def gather(
        self, stage: int, chunk: int, gpu: int, j: int, ready: int, before: int | None
    ) -> int:
        """Bring a chunk after the operation before has started, from home or from a copy.

        Return when it is there.
        """
        ready -= self.draw(st.integers(0, 6))
        total = self.chain.layers[stage].parameter_bytes or 0
        home = self.home(stage, chunk)
        ways: list[tuple[int, int, int | None]] = [(home, ready, None)]
        for source, arrived, until in self.copies[stage, chunk, j // self.every]:
            if source not in (gpu, home):
                ways.append((source, max(ready, arrived), until))
        source, begin, latest = self.draw(st.sampled_from(ways[::-1]))
        length = self.platform.transfer_ns(self.part(total, stage, chunk), source, gpu)
        if before is not None:
            begin = max(begin, before - length + 1)
        start, end = self.carry("weights", stage, chunk, (source, gpu), j, begin)
        if latest is not None and start > latest:
            self.transfers.pop()
            _, end = self.carry("weights", stage, chunk, (home, gpu), j, start)
        return end

    def reduce(self, stage: int, mini_batch: int, made: dict[tuple[int, int], int]) -> None:
        """Bring the gradients of a mini-batch home, update there, and bring the weights back."""
        first = mini_batch * self.every
        name = first + self.draw(st.integers(0, self.every - 1))
        ready: dict[tuple[int, int], int] = {}
        for i in range(first, first + self.every):
            gpu = self.stages[stage].gpu(i)
            for chunk in range(self.chunks[stage]):
                key = (gpu, chunk)
                ready[key] = max(ready.get(key, 0), self.through[stage, i])
        often = self.shard(stage) in ("gradient", "parameter") and self.draw(st.booleans())
        for chunk in range(self.chunks[stage]):
            home = self.home(stage, chunk)
            senders = [gpu for gpu in sorted(self.members(stage, mini_batch)) if gpu != home]
            if often:
                for gpu in senders:
                    end = self.take_home(stage, chunk, gpu, mini_batch)
                    ready[home, chunk] = max(ready.get((home, chunk), end), end)
                senders = []
            order = [*self.draw(st.permutations(senders)), home]
            for number, gpu in enumerate(order[:-1]):
                other = self.draw(st.sampled_from(order[number + 1 :]))
                begin = ready[gpu, chunk] + self.wait()
                ends = (gpu, other)
                _, end = self.carry("weight_gradient", stage, chunk, ends, name, begin)
                ready[other, chunk] = max(ready.get((other, chunk), end), end)
            made[home, chunk] = max(made[home, chunk], ready[home, chunk])
        if self.update_ns:
            self.update(stage, first, made)
        if self.shard(stage) != "parameter":
            for chunk in range(self.chunks[stage]):
                self.spread(stage, chunk, name, made)

    def take_home(self, stage: int, chunk: int, gpu: int, mini_batch: int) -> int:
        """Send a gradient home as often as there is some of it, and return when all is there."""
        first, end = mini_batch * self.every, 0
        own = [i for i in range(first, first + self.every) if self.stages[stage].gpu(i) == gpu]
        left = sorted((self.through[stage, i], i) for i in own)
        while left:
            whole, i = left[0]
            ends, begin = (gpu, self.home(stage, chunk)), whole + self.wait()
            start, arrived = self.carry("weight_gradient", stage, chunk, ends, i, begin)
            left = [one for one in left if one[0] > start]
            end = max(end, arrived)
        return end

    def update(self, stage: int, first: int, made: dict[tuple[int, int], int]) -> None:
        gpus = self.stages[stage].gpus
        chunks = range(self.chunks[stage])
        for gpu in sorted({self.home(stage, chunk) for chunk in chunks}):
            mine = [chunk for chunk in chunks if self.home(stage, chunk) == gpu]
            total = self.chain.layers[stage].parameter_bytes or 0
            share = sum(self.part(total, stage, chunk) for chunk in mine)
            length = -(-self.update_ns * share // total) if total else self.update_ns
            j = next(i for i in range(first, first + self.every) if gpus[i % len(gpus)] == gpu)
            start = self.run("U", stage, j, max(made[gpu, chunk] for chunk in mine), length)
            made.update({(gpu, chunk): start + length for chunk in mine})

    def spread(self, stage: int, chunk: int, name: int, made: dict[tuple[int, int], int]) -> None:
        home = self.home(stage, chunk)
        others = sorted(set(self.stages[stage].gpus) - {home})
        has = [home]
        for gpu in self.draw(st.permutations(others)):
            source = home if self.shard(stage) == "none" else self.draw(st.sampled_from(has))
            parts = range(self.chunks[stage]) if self.shard(stage) == "none" else (chunk,)
            begin = max(made[source, part] for part in parts) + self.wait()
            begin = max(begin, made[gpu, chunk])
            _, end = self.carry("weights", stage, chunk, (source, gpu), name, begin)
            made[gpu, chunk] = end
            has.append(gpu)

    def finish(self) -> Plan:
        """Return the plan with a rule that it keeps."""
        layers = tuple(
            replace(layer, update_ns=self.update_ns or None) for layer in self.chain.layers
        )
        plan = Plan(
            chain=replace(self.chain, layers=layers),
            platform=self.platform,
            rule=Rule(update_every=self.every),
            scope=Scope(
                allocation="general",
                max_k=None,
                memory=self.draw(st.sampled_from(["sum", "peak"])),
                split_backward=True,
                recompute=True,
            ),
            stages=self.stages,
            pattern=Pattern(
                k=self.k,
                period_total_ns=self.period,
                operations=tuple(self.operations),
                transfers=tuple(self.transfers),
            ),
        )
        reads: list[ForwardReads] = ["delay", "delay", "delay", "live", "entry"]
        return self.read_with(plan, self.draw(st.sampled_from(reads)))

    def read_with(self, plan: Plan, forward: ForwardReads) -> Plan:
        """Return the plan with the shortest delay that it allows, or none at all."""
        backward = self.draw(st.sampled_from(get_args(BackwardReads)[: 2 - (forward == "delay")]))
        rule = replace(plan.rule, forward_reads=forward, backward_reads=backward)
        for delay in range(12 if forward == "delay" else 1):
            plan = replace(plan, rule=replace(rule, delay=delay))
            violations = check(plan)
            # Mini-batches may end out of order, so that a version lacks what is sent of it.
            assert {violation.kind for violation in violations} <= {"version", "gradient"}
            if not violations:
                return plan
        return reject()
