"""The processes of a plan: pipelines side by side, with tensor groups and replicas."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from schedopt.actions import find_grid, gpu_ranks, make_actions, make_lane_rows
from schedopt.errors import InputError
from schedopt.launcher import telling_torchrun
from schedopt.plan import Plan
from schedopt.profiling.devices import find_device
from schedopt.profiling.model import Model
from schedopt.profiling.pieces import Piece
from schedopt.result import Result
from schedopt.running.mesh import DATA, make_mesh, tensor_group
from schedopt.running.model_match import match_part, pieces_in_evaluation
from schedopt.running.torch_runtime import run_forward, run_step
from schedopt.torch.agreement import Agreement
from schedopt.torch.checkpoints import Owned, load_state, save_state
from schedopt.torch.copies import Copies, find_copies, without_sums
from schedopt.torch.gradients import clip_by_norm, kept_apart, sum_over
from schedopt.torch.mini_batch import MiniBatch
from schedopt.torch.runs import Run, Runs
from schedopt.torch.sharding import check_shards, free_gathered, meets_often, shard_stages
from schedopt.torch.stages import (
    Factory,
    make_modules,
    model_of,
    on_device,
    this_rank,
    valid_plan,
)
from schedopt.torch.weights import (
    Place,
    WholeState,
    names_in_stages,
    own_names,
    weights_of,
)


@telling_torchrun()
def pipeline(
    model: Factory, plan: Plan | Result, microbatches: int, *, device: str = "cpu"
) -> Pipeline:
    """Return the stages of this process, and a schedule of the plan that is loaded.

    Each process calls this at the same time, after ``torch.distributed.init_process_group``. There
    is one for each GPU that has a stage, in the order of their numbers.

    Parameters
    ----------
    model : Model or tuple
        What the factory returns that was profiled, with the same weights in each process. Where a
        plan has tensor groups, its ``tp_plan`` says how it is split.
    plan : Plan or Result
        With a flush behind each step. All stages have equally many replicas, of equally many GPUs.
    microbatches : int
        Of one step, those of all replicas.
    device : str
        Of this process: ``cpu``, or a GPU such as ``cuda:0``, with NCCL.

    Raises
    ------
    InputError
        As `split`; and for a plan that torch's runtime or FSDP cannot run, another number of
        processes than the plan has GPUs with a stage, or a torch without such a runtime.
    """
    checked = valid_plan(plan)
    actions = make_actions(without_sums(checked), microbatches)
    grid = find_grid(checked)
    ranks = gpu_ranks(checked)
    lanes = [[ranks[gpu] for gpu in grid.lane(replica)] for replica in range(grid.replicas)]
    rows = [make_lane_rows(checked, actions, lane) for lane in lanes]
    check_shards(checked, rows)
    number, place = this_rank(len(grid.processes)), find_device(device)
    _, replica, member = grid.places[number]
    lane = lanes[replica]
    stages = rows[replica].stages[lane.index(ranks[grid.processes[number] - member])]
    built = model_of(model)
    mesh = make_mesh(grid, place)
    part, pieces, boundaries = match_part(built, checked, tensor_group(mesh))
    evaluated, no_evaluation = _in_evaluation(part, checked, grid.tensor, pieces)
    batch = MiniBatch(built, microbatches, place)
    whole = WholeState.of(built)
    names = own_names(part)
    copies = find_copies(checked, grid, pieces, names, number)
    named = names_in_stages(names, make_modules(checked, pieces, stages, batch.give, evaluated))
    pieces, evaluated = on_device(checked, stages, place, pieces, evaluated)
    modules = make_modules(checked, pieces, stages, batch.give, evaluated)
    batch.names = tuple(dict.fromkeys(name for one in modules.values() for name in one.inputs))
    shard_stages(checked, modules, mesh[DATA])
    where = Place(mesh.get_group(DATA).rank(), grid.replicas, member=member, members=grid.tensor)
    owned = Owned(*weights_of(modules, named, whole, where, copies.later), whole)
    runs = Runs(checked, actions, lane, modules, boundaries, place, mesh)
    return Pipeline(runs, batch, owned, copies, microbatches, no_evaluation)


def _in_evaluation(
    part: Model, plan: Plan, tensor: int, pieces: list[Piece]
) -> tuple[list[Piece], InputError | None]:
    """Return the layers in evaluation, or those in training and why there are no others."""
    try:
        return pieces_in_evaluation(part, plan.in_group(tensor), pieces), None
    except InputError as error:
        return pieces, error


class Pipeline:
    """The part of a plan that this process runs. Made by `pipeline`.

    Attributes
    ----------
    stages : list of PipelineStage
        Ascending. ``stage.submod`` are the layers.
    schedule : object
        Torch's runtime with the order of the plan.
    mesh : DeviceMesh
        All processes: ``pp`` x ``dp`` x ``tp``, stages, replicas and tensor groups.
    """

    def __init__(
        self,
        runs: Runs,
        batch: MiniBatch,
        owned: Owned,
        copies: Copies,
        microbatches: int,
        no_evaluation: InputError | None,
    ) -> None:
        self._runs, self._batch = runs, batch
        self._no_evaluation = no_evaluation
        self._owned, self._copies = owned, copies
        self._count = self._most = microbatches
        self._losses: list[Tensor] = []
        self._agreement = Agreement()
        whole = runs.of(microbatches, self._part_of_mean)
        self.stages, self.schedule = whole.stages, whole.schedule
        self.mesh = runs.mesh

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of the model that this process needs."""
        return self._batch.names

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """The micro-batches of a whole step that this process runs, ascending."""
        return tuple(sorted(self._runs.of(self._most, self._part_of_mean).rows.micro_batches))

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the stages of this process, each once.

        In a tensor group they are parts of the model's; those that replicas share are `DTensor`.
        """
        for _, parameter in self.named_parameters():
            yield parameter

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield `parameters` with the model's own names."""
        for weight in self._owned.parameters:
            assert isinstance(weight.tensor, nn.Parameter)
            yield weight.name, weight.tensor

    @telling_torchrun()
    def step(self, *args: Tensor, **named: Tensor) -> Tensor | None:
        """Run the forward and the backward of a mini-batch, and add to ``.grad``.

        Gradients are those of the mean of the losses of the micro-batches, of all replicas.
        Weights are not updated: that is the optimizer's, on each process.

        The last mini-batch may have fewer micro-batches, at least one for each replica: those run
        in the order that they have in the plan.

        Parameters
        ----------
        *args, **named : Tensor
            The inputs of the model as its forward takes them, each of as many micro-batches along
            the first dimension, or of one that all share. All processes are given the same; each
            needs `inputs` only, and of these only the rows of its `micro_batches`.

        Returns
        -------
        Tensor or None
            The mean loss, where the last stage lies.

        Raises
        ------
        InputError
            If an input is missing, has another shape than the plan was made for, or a layer fails.
        """
        run = self._load(args, named)
        replicas = self.mesh[DATA]
        try:
            with kept_apart(self.parameters()):
                run_step(run.schedule, run.rows)
                if replicas.size() > 1:
                    whole = (one for one in self.parameters() if not isinstance(one, DTensor))
                    sum_over(whole, replicas.get_group())
                self._copies.sum(self._owned.parameters)
        finally:
            self._batch.clear()
            free_gathered(self._runs.modules.values())
        return self._mean_loss()

    @telling_torchrun()
    def eval_step(self, *args: Tensor, **named: Tensor) -> Tensor | None:
        """Run the forward of a mini-batch without gradients, and the model as in evaluation.

        A model that was traced has been so a second time, in evaluation.

        Parameters
        ----------
        *args, **named : Tensor
            As for `step`.

        Returns
        -------
        Tensor or None
            The mean loss, where the last stage lies.

        Raises
        ------
        InputError
            As `step`, and if the model in evaluation cannot be cut as the plan cuts it.
        """
        if self._no_evaluation is not None:
            raise self._no_evaluation
        run = self._load(args, named)
        layers = nn.ModuleList(self._runs.modules.values())
        modes = [(module, module.training) for module in layers.modules()]
        layers.eval()
        try:
            with kept_apart(self.parameters()):
                run_forward(run.schedule, run.rows)
        finally:
            for module, mode in modes:
                module.training = mode
            self._batch.clear()
            for stage in run.stages:
                stage.clear_runtime_states()
            free_gathered(self._runs.modules.values())
        return self._mean_loss()

    @telling_torchrun()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm over the whole model is `max_norm` at most.

        As ``torch.nn.utils.clip_grad_norm_`` does with the whole model in one process: what tensor
        groups, replicas or stages have in common counts once. All processes call it at the same
        time, behind `step`.

        Parameters
        ----------
        max_norm : float
        norm_type : float
            p of the norm, or ``inf``.

        Returns
        -------
        Tensor
            The norm before that, the same in all processes.

        Raises
        ------
        InputError
            If one of them is no number above 0.
        """
        device = self.stages[0].device
        return clip_by_norm(self._owned.parameters, max_norm, norm_type, device)

    @telling_torchrun()
    def save(
        self, folder: str | PathLike[str], optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Write the model and the optimizer to a folder, through torch.distributed.checkpoint.

        All processes call it at the same time, between steps, and see the same folder. Under
        ``model.`` lie parameters and buffers by the model's own names, tied ones once; under
        ``optimizer.state.`` what the optimizer keeps of each. A checkpoint that is there is
        replaced when the new one is whole.

        Parameters
        ----------
        folder : path
        optimizer : torch.optim.Optimizer, optional
            Made from `parameters`.

        Raises
        ------
        InputError
            If the folder cannot be written or is no checkpoint, or the optimizer has other
            parameters, or keeps something of another shape for a parameter that is cut.
        """
        save_state(folder, self._owned, optimizer, self._agreement)

    @telling_torchrun()
    def load(
        self, folder: str | PathLike[str], optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Read what `save` wrote, on this plan or another one: other stages, replicas or groups.

        All processes call it at the same time. Nothing changes unless all of it can be read. A
        checkpoint is made by pickle: load only what you trust.

        Parameters
        ----------
        folder : path
        optimizer : torch.optim.Optimizer, optional
            Made from `parameters`, of the kind that was saved. Learning rates and the like come
            from the checkpoint.

        Raises
        ------
        InputError
            If there is no whole checkpoint, or it is of another model or optimizer.
        """
        load_state(folder, self._owned, optimizer, self._agreement)

    def _load(self, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> Run:
        """Take the inputs of a mini-batch; return what runs its micro-batches."""
        count = self._agreement.count(lambda: self._batch.load(args, named), self._most)
        replicas = self.mesh[DATA].size()
        if count < replicas:
            raise InputError(
                f"{count} micro-batches leave one of {replicas} replicas without",
                field="step",
                way_out=f"Give {replicas} or more in a step",
            )
        rows = self._runs.of(self._most, self._part_of_mean).rows
        if count % replicas and any(meets_often(self._runs.plan, each) for each in rows.stages):
            raise InputError(
                f"{count} micro-batches are no multiple of {replicas} replicas, which meet at "
                "each operation",
                field="step",
                way_out=f"Give {-(-count // replicas) * replicas} in a step",
            )
        self._count = count
        self._batch.split(count)
        self._losses.clear()
        return self._runs.of(count, self._part_of_mean)

    def _part_of_mean(self, output: Tensor, target: object) -> Tensor:
        """Return the part of the last layer's output, the loss, in the mean."""
        self._losses.append(output.detach())
        return output / self._count

    def _mean_loss(self) -> Tensor | None:
        """Return the mean loss over all replicas, where the last stage lies."""
        if not self._losses:
            return None
        mean = torch.stack(self._losses).sum() / self._count
        replicas = self.mesh[DATA]
        if replicas.size() > 1:
            dist.all_reduce(mean, group=replicas.get_group())
        return mean
