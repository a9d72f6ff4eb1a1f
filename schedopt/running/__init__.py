"""Running a plan: what each rank does, three ways to do it, and what was measured.

torch is imported only when something runs::

    from schedopt.running import Job, execute

    job = Job(plan=plan, model="package.module:factory", backend="p2p", microbatches=16)
    print(execute(job).measured.period_ns)

Who calls whom, from a job to its report:

- ``job`` says what is asked; ``execution`` runs it in this process, or starts a ``rank_process``
  for each rank.
- Either way ``controller`` prepares the model (``model_match``, or ``synthetic`` layers) and runs
  the steps of a backend: ``backends`` has the three ways to run one.
- A ``workload`` is what runs; a ``rank`` does the operations of its list on its stages, each a
  ``stage_runtime`` with its ``weight_versions`` and ``weight_gradients``, or ``weight_shards``
  where it has only some at home, all of them chunks of a ``weight_row``. ``links`` carry what ranks
  send, ``replica_exchange`` says what it is.
  ``torch_runtime`` lets torch's own runtime do the same with a ``stage_module`` for each stage.
- ``reference`` does the first step in one process and compares; ``records`` are what was measured,
  ``figures`` and ``report`` what follows from it, ``timelines`` its pictures.
"""

from __future__ import annotations

from schedopt.actions import Action, Actions, make_actions, parse_action, parse_actions
from schedopt.running.execution import execute
from schedopt.running.figures import Figures
from schedopt.running.job import BACKENDS, Backend, Job
from schedopt.running.report import Discrepancy, Report
from schedopt.running.timelines import make_trace

__all__ = [
    "BACKENDS",
    "Action",
    "Actions",
    "Backend",
    "Discrepancy",
    "Figures",
    "Job",
    "Report",
    "execute",
    "make_actions",
    "make_trace",
    "parse_action",
    "parse_actions",
]
