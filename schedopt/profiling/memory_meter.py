"""How much memory the tensors take that live at once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from schedopt.profiling.saved_tensors import storage_key


class Meter(TorchDispatchMode):
    """Follows the storages that operators make, from their birth to their end.

    What an operator takes and gives back inside is not seen. Other threads may note tensors.

    Parameters
    ----------
    permanent : iterable of Tensor
        Not counted: parameters, buffers, inputs.

    Attributes
    ----------
    now, most : int
        Bytes that live now, and the most so far.
    """

    def __init__(self, permanent: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: set[int] = set()
        # A tensor may end in the thread that notes another one.
        self._lock = threading.RLock()
        self.now = self.most = 0
        self.leave_out(permanent)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator and note the storages of its results."""
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor) and result.layout == torch.strided:
                self.note(result)
        return results

    def leave_out(self, permanent: Iterable[Tensor]) -> None:
        """Count these tensors no more than the permanent ones, as long as they live."""
        for tensor in permanent:
            key = storage_key(tensor)
            if key not in self._known:
                self._known.add(key)
                weakref.finalize(tensor.untyped_storage(), self._known.discard, key)

    def reset(self) -> None:
        """Count the most from here on."""
        self.most = self.now

    def note(self, tensor: Tensor) -> None:
        """Count a tensor that was made elsewhere."""
        storage = tensor.untyped_storage()
        key, size = storage_key(tensor), storage.nbytes()
        with self._lock:
            if key in self._known:
                return
            self._known.add(key)
            self.now += size
            self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        with self._lock:
            self._known.discard(key)
            self.now -= size
