"""Batches without copies, also through torch's own ``default_collate``.

A batch is decoded into one array per key. Handed to a ``DataLoader`` as a list of samples, it would
be torn apart only to be copied together again: 29 MB for 32 images of 480x640. So a sample
remembers the batch it was cut from, and torch's documented extension point
(``default_collate_fn_map``) puts samples that still are that batch back together for nothing.
Samples that were changed, filtered or reordered on the way are collated the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data.dataloader import default_collate

from demoreel.read.batch import Recycler
from demoreel.torch.ring import Ring, SharedBlock, is_possible, travelling

_WORTH_A_BLOCK = 1 << 18


@runtime_checkable
class Packets(Protocol):
    """Images that are packets still; see ``EncodedImages``."""

    def ready_to_travel(self, mark: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """Return them as a worker sends them."""


class TensorBatch(dict[str, Any]):
    """A batch of tensors, and which of them lie in shared blocks."""

    def __init__(self, values: dict[str, Any], blocks: dict[int, SharedBlock]) -> None:
        super().__init__(values)
        self._blocks = blocks

    def ready_to_travel(self) -> dict[str, Any]:
        """Return the batch as a worker sends it: blocks are lent to the other side, not copied."""
        if not self._blocks:
            return dict(self)
        return {key: self._marked(value) for key, value in self.items()}

    def _marked(self, value: Any) -> Any:
        if isinstance(value, Packets):
            return value.ready_to_travel(self._marked)
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
        self.blocks: dict[int, SharedBlock] = {}

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


class Sample(dict[str, Any]):
    """A sample that remembers its batch. Otherwise a dict like any other."""

    __slots__ = ("batch", "place", "values_as_cut")

    def __init__(self, values: dict[str, Any], batch: TensorBatch, place: int) -> None:
        super().__init__(values)
        self.batch = batch
        self.place = place
        self.values_as_cut = values

    def is_as_cut(self, batch: TensorBatch, place: int) -> bool:
        """Whether this still is that place of that batch, with nothing replaced."""
        cut = self.values_as_cut
        return (
            self.batch is batch
            and self.place == place
            and len(self) == len(cut)
            and all(self.get(key) is value for key, value in cut.items())
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # A sample that travels alone must not take its whole batch along.
        return (dict, (dict(self),))


def cut_samples(batch: TensorBatch, count: int) -> list[Sample]:
    """Cut a batch into samples that can be put together again."""
    keys = list(batch)
    columns = [v.unbind(0) if isinstance(v, torch.Tensor) else v for v in batch.values()]
    return [
        Sample(dict(zip(keys, values, strict=True)), batch, place)
        for place, values in zip(range(count), zip(*columns, strict=True), strict=True)
    ]


def collate_samples(
    samples: list[Sample], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None
) -> dict[str, Any]:
    """Collate samples; a whole batch that is unchanged is returned as it was decoded."""
    batch = samples[0].batch
    whole = len(samples) == _batch_length(batch)
    if whole and all(sample.is_as_cut(batch, place) for place, sample in enumerate(samples)):
        return batch.ready_to_travel()
    return {key: _collated([sample[key] for sample in samples]) for key in samples[0]}


def _batch_length(batch: TensorBatch) -> int:
    return len(next(iter(batch.values()))) if batch else 0


def _collated(values: list[Any]) -> Any:
    if isinstance(values[0], (str, list)):
        return values  # language differs in length from frame to frame
    return default_collate(values)


default_collate_fn_map[Sample] = collate_samples
