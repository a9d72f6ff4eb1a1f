"""Running a plan: what each rank does, three ways to do it, and what was measured.

torch is imported only when something runs::

    from schedopt.running import Job, execute

    job = Job(plan=plan, model="package.module:factory", backend="p2p", microbatches=16)
    print(execute(job).measured.period_ns)
"""

from __future__ import annotations

from schedopt.actions import Action, Actions, make_actions, parse_action, parse_actions
from schedopt.running.figures import Figures
from schedopt.running.job import BACKENDS, Backend, Job
from schedopt.running.report import Parting, Report
from schedopt.running.run import execute
from schedopt.running.trace import make_trace

__all__ = [
    "BACKENDS",
    "Action",
    "Actions",
    "Backend",
    "Figures",
    "Job",
    "Parting",
    "Report",
    "execute",
    "make_actions",
    "make_trace",
    "parse_action",
    "parse_actions",
]
