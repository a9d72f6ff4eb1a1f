"""Training a plan in a script of one's own, on torch's pipeline runtime.

In a script that torchrun starts, with a process for each GPU that has a stage::

    from schedopt import Result
    from schedopt.torch import pipeline

    pipe = pipeline(build(), Result.load("plan.json"), microbatches=16)
    optimizer = torch.optim.AdamW(pipe.parameters())
    for batch in batches:
        loss = pipe.step(**batch)
        pipe.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()

``build`` is the factory that was profiled. `schedopt.examples.train_pipeline` is a whole script.
"""

from __future__ import annotations

from schedopt.torch.pipeline import Pipeline, pipeline
from schedopt.torch.stages import split

__all__ = ["Pipeline", "pipeline", "split"]
