"""Pipelines that never drain: 1F1B in its steady state, under four rules of the weights.

At stage s of P at most P - s micro-batches are in flight: after so many forwards each GPU runs a
backward and a forward in turn (Narayanan et al. 2019, section 3.2).
"""

from __future__ import annotations

from schedopt.account import versions
from schedopt.plan import Plan
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.systems.setting import Setting
from schedopt.systems.timetable import Timetable


def pipedream(setting: Setting) -> Plan:
    """Return PipeDream: an update each micro-batch, whose backward reads what its forward read."""
    return one_f_one_b(setting, Rule(update_every=1))


def pipedream_vertical(setting: Setting) -> Plan:
    """Return PipeDream with vertical sync: all stages read the version of the first one."""
    return one_f_one_b(setting, Rule(update_every=1, forward_reads="entry"))


def pipedream_2bw(setting: Setting) -> Plan:
    """Return PipeDream-2BW (Narayanan et al. 2021): a delay of one update, two versions.

    An update comes every m micro-batches of the step, or as soon after as that allows: all that
    is in flight began at most one update ago. The source has m >= P.
    """
    m = setting.microbatches
    while True:
        newest = one_f_one_b(setting, Rule(update_every=m))
        if max(versions(newest).forward_staleness.values()) <= 1:
            return one_f_one_b(setting, Rule(update_every=m, forward_reads="delay", delay=1))
        m += 1


def pipemare(setting: Setting) -> Plan:
    """Return the pipeline of PipeMare (Yang et al. 2021): all read the newest weights.

    What it does to the learning rate and to the weights of the backward is not in the plan.
    """
    m = setting.microbatches
    return one_f_one_b(setting, Rule(update_every=m, backward_reads="live"))


def one_f_one_b(setting: Setting, rule: Rule, stages: list[Stage] | None = None) -> Plan:
    """Return 1F1B without a flush on stages, one for each GPU, under a rule.

    Updates come right behind the last backward of a mini-batch. If they take time, the pattern is
    one of whole mini-batches.

    Parameters
    ----------
    setting : Setting
    rule : Rule
    stages : list of Stage, optional
        Default: balanced ones.
    """
    gpus = len(setting.platform.gpus)
    stages = stages or setting.pipeline()
    every = rule.update_every or 1

    def follow(count: int) -> Timetable:
        timetable = setting.timetable(rule, stages)
        for stage in range(gpus):
            _run_stage(timetable, stage, gpus - stage, count, every)
        return timetable

    return setting.steady(follow, every if setting.updated else 1)


def _run_stage(
    timetable: Timetable, stage: int, in_flight: int, count: int, update_every: int
) -> None:
    for i in range(min(in_flight, count)):
        timetable.run("F", stage, i)
    for i in range(count):
        timetable.run("B", stage, i)
        if (i + 1) % update_every == 0:
            timetable.update(stage, i)
        if i + in_flight < count:
            timetable.run("F", stage, i + in_flight)
