"""The gradients of a stage on its rank, mini-batch by mini-batch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from schedopt.running.weight_row import Chunk, WeightRow


class Gradients:
    """The gradients of the parameters of a stage.

    There is one for each parameter. Only where a backward comes before the rank is through with
    the gradients of an earlier mini-batch, its gradients are kept apart: that is memory which the
    account, with one `gradient_bytes` a stage, does not count.

    Where gradients are sharded, what a rank has at home of a mini-batch is kept apart when its last
    backward is through, and all gradients are freed but those of parameters that lie at home whole.
    What came is kept until the update, too, and the account does not count either.

    Parameters
    ----------
    parameters : mapping of str to Parameter
    home : sequence of (int, int), optional
        The chunks at home here. None where gradients are not sharded.

    Attributes
    ----------
    ballast_bytes : int
        What the gradients of a mini-batch take besides, as long as they are not home.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], home: Sequence[Chunk] | None = None
    ) -> None:
        self._parameters = parameters
        self._row = WeightRow(parameters)
        self._home = home
        self._stays: Collection[str] = parameters
        if home is not None:
            pieces = [piece for chunk in home for piece in self._row.slices(chunk)]
            self._stays = {piece.name for piece in pieces if piece.is_whole}
        self.ballast_bytes = 0
        self._turn = 0
        """The mini-batch whose gradients the parameters hold."""
        self._early: dict[int, dict[str, Tensor | None]] = {}
        """Gradients of other mini-batches."""
        self._at_home: dict[int, tuple[dict[Chunk, Tensor], set[str]]] = {}
        """What was kept apart: chunks, and the parameters that were trained."""
        self._shares: Counter[int] = Counter()
        """How many actions still need the gradients of each mini-batch."""
        self._ballast: dict[int, Tensor] = {}
        self._gone: dict[int, set[Chunk]] = defaultdict(set)
        """What was sent of each mini-batch, until all that is not at home was."""

    def begin_step(self, backwards: Mapping[int, int], updates: Mapping[int, int]) -> None:
        """Count mini-batches from 0 again; of each how many backwards and updates come here."""
        self._shares = Counter(backwards)
        if self._home is None:
            self._shares.update(updates)
        self._turn = min(self._shares, default=0)

    @contextmanager
    def adding(self, mini_batch: int) -> Iterator[None]:
        """Let backwards add their gradients to those of a mini-batch."""
        if self.ballast_bytes and mini_batch not in self._ballast:
            self._ballast[mini_batch] = torch.empty(self.ballast_bytes, dtype=torch.uint8)
        if mini_batch == self._turn:
            yield
            return
        own = self._swapped(self._early.get(mini_batch, {}))
        try:
            yield
        finally:
            self._early[mini_batch] = self._swapped(own)

    def used(self, mini_batch: int) -> None:
        """Count one of those through that need the gradients of a mini-batch.

        After the last they are 0 or freed, and the next mini-batch has its turn.
        """
        self._shares[mini_batch] -= 1
        if self._shares[mini_batch] > 0:
            return
        del self._shares[mini_batch]
        self._ballast.pop(mini_batch, None)
        self._gone.pop(mini_batch, None)
        if self._home:
            chunks = {chunk: self.chunk(mini_batch, chunk) for chunk in self._home}
            self._at_home[mini_batch] = chunks, self._names(mini_batch)
        if mini_batch != self._turn:
            self._early.pop(mini_batch, None)
            return
        for name, parameter in self._parameters.items():
            if name not in self._stays:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
        self._turn = min(self._shares, default=self._turn)
        for name, gradient in self._early.pop(self._turn, {}).items():
            if gradient is not None:
                self._parameters[name].grad = gradient

    def taken(self, mini_batch: int, chunk: Chunk) -> None:
        """Free what was sent of a mini-batch, but of parameters that lie in other chunks, too."""
        of = self._of(mini_batch)
        for piece in self._row.slices(chunk):
            if piece.is_whole and mini_batch == self._turn:
                self._parameters[piece.name].grad = None
            elif piece.is_whole and of.get(piece.name) is not None:
                self._early[mini_batch][piece.name] = None
        self._gone[mini_batch].add(chunk)
        if len(self._gone[mini_batch]) == chunk[1] - len(self._home or ()):
            del self._gone[mini_batch]
            self._ballast.pop(mini_batch, None)

    def finish(self, mini_batch: int) -> None:
        """End a mini-batch that was applied, whatever else was to need its gradients."""
        self._shares[mini_batch] = 1
        self.used(mini_batch)

    def row(self, mini_batch: int, row: WeightRow) -> Tensor:
        """Return a copy of the gradients of some parameters, 0 where there is none."""
        return row.read((0, 1), self._of(mini_batch))

    def chunk(self, mini_batch: int, chunk: Chunk) -> Tensor:
        """Return a copy of a chunk of the gradients of a mini-batch, 0 where there is none."""
        if mini_batch in self._at_home:
            return self._at_home[mini_batch][0][chunk]
        return self._row.read(chunk, self._of(mini_batch))

    def trained(self, mini_batch: int) -> set[str]:
        """Return the parameters that have a gradient: all, if no backward of it was here."""
        names = self._names(mini_batch) if self._home is None else set()
        if mini_batch in self._at_home:
            names = self._at_home[mini_batch][1]
        return names or set(self._parameters)

    def applied(self, mini_batch: int, chunks: Iterable[Chunk]) -> None:
        """Count an update through that applied some chunks of a mini-batch."""
        if self._home is None:
            self.used(mini_batch)
        for chunk in chunks if mini_batch in self._at_home else ():
            del self._at_home[mini_batch][0][chunk]
        if mini_batch in self._at_home and not self._at_home[mini_batch][0]:
            del self._at_home[mini_batch]

    def replace(self, mini_batch: int, chunks: Mapping[Chunk, Tensor]) -> None:
        """Let chunks of the gradients of a mini-batch be these values.

        What no backward of this rank gives a gradient gets none, if there was a backward.
        """
        with self.adding(mini_batch):
            was_trained = any(parameter.grad is not None for parameter in self._parameters.values())

            def gradient(parameter: nn.Parameter) -> Tensor | None:
                if parameter.grad is None and not was_trained:
                    parameter.grad = torch.zeros_like(parameter)
                return parameter.grad

            for chunk, values in chunks.items():
                self._row.write(chunk, values, gradient)

    def tensors(self) -> list[Tensor]:
        """Return those that the parameters hold."""
        return [own.grad for own in self._parameters.values() if own.grad is not None]

    def _of(self, mini_batch: int) -> Mapping[str, Tensor | None]:
        if mini_batch == self._turn:
            return {name: own.grad for name, own in self._parameters.items()}
        return self._early.get(mini_batch, {})

    def _names(self, mini_batch: int) -> set[str]:
        return {name for name, gradient in self._of(mini_batch).items() if gradient is not None}

    def _swapped(self, given: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """Give the parameters other gradients and return those that they had."""
        previous = {name: parameter.grad for name, parameter in self._parameters.items()}
        for name, parameter in self._parameters.items():
            parameter.grad = given.get(name)
        return previous
