"""Where a batch's tensors live: recycled memory, or memory that a worker shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from demoreel.read.memory import Recycler
from demoreel.torch.ring import Block, Ring, is_possible, travelling

_WORTH_A_BLOCK = 1 << 18


class TensorBatch(dict[str, Any]):
    """A batch of tensors that knows which of them lie in shared blocks."""

    def __init__(self, values: dict[str, Any], blocks: dict[int, Block]) -> None:
        super().__init__(values)
        self._blocks = blocks

    def ready_to_travel(self) -> dict[str, Any]:
        """Return the batch as a worker sends it: blocks are lent to the other side, not copied."""
        if not self._blocks:
            return dict(self)
        return {key: self._marked(value) for key, value in self.items()}

    def _marked(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        block = self._blocks.get(value.data_ptr())
        return value if block is None else travelling(value, block)


class Allocator:
    """Makes the memory of one batch.

    Args:
        memory: Serves in a main process, and for what is only passed through.
        ring: A worker's shared blocks; None in a main process.
    """

    def __init__(self, memory: Recycler, ring: Ring | None) -> None:
        self._memory = memory
        self._ring = ring
        self.blocks: dict[int, Block] = {}

    def private(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialised array that does not leave this process."""
        return self._memory(shape, dtype)

    def shared(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialised array; in a worker, in a shared block if one is free."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        block = self._ring.take(size) if self._ring and size >= _WORTH_A_BLOCK else None
        if block is None:
            return self._memory(shape, dtype)
        array = block.array()
        self.blocks[array.__array_interface__["data"][0]] = block
        return array.view(dtype).reshape(shape)


def ring_of_this_worker() -> Ring | None:
    """Return a new ring in a DataLoader worker, None in a main process."""
    in_worker = torch.utils.data.get_worker_info() is not None
    return Ring() if in_worker and is_possible() else None
