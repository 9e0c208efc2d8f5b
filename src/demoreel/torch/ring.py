"""Shared memory that workers use again, once the training process has dropped a batch.

torch gives every tensor that a worker sends fresh shared memory. The kernel must clear it page by
page, which for windows of video takes half as long as decoding them. Here a worker keeps a few
blocks of shared memory. A block travels with the batch that was decoded into it; when the training
process lets go of the last tensor of that batch, it marks the block as free, and the worker takes
it again. Neither side copies, and no page is cleared twice.

A block is a file without a name (``memfd``), so that nothing is left behind however a process ends.
The first page holds one number: whether the other side is using the block. Where any of this is
not to be had (other systems, a parent that may not look into ``/proc``), torch's own way serves.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, cast

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

# torch gives these functions no types.
_reduce_plain = cast(Callable[[torch.Tensor], tuple[Any, ...]], reduce_tensor)

_HEADER = mmap.PAGESIZE
_MOST_BLOCKS = 12


class SharedBlock:
    """A piece of shared memory in the worker that made it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.handle = os.memfd_create("demoreel-batch", os.MFD_CLOEXEC)
        os.posix_fallocate(self.handle, 0, _HEADER + size)  # a full /dev/shm is an error here
        self._pages = mmap.mmap(self.handle, _HEADER + size)
        self.sent = np.frombuffer(self._pages, np.int64, 1)
        self._held_here = False

    @property
    def is_free(self) -> bool:
        """Whether neither this process nor the other looks at it."""
        return not self._held_here and not self.sent[0]

    def array(self) -> np.ndarray:
        """Return its bytes; the block counts as held until every view of them is gone."""
        self._held_here = True
        array = np.frombuffer(self._pages, np.uint8, self.size, _HEADER)
        weakref.finalize(array, self._let_go).atexit = False
        return array

    def _let_go(self) -> None:
        self._held_here = False

    def __del__(self) -> None:
        handle = getattr(self, "handle", None)
        if handle is not None:
            os.close(handle)


class Ring:
    """A worker's blocks."""

    def __init__(self) -> None:
        self._blocks: list[SharedBlock] = []

    def take(self, size: int) -> SharedBlock | None:
        """Return a free block of this size; None if there are too many in use already."""
        for block in self._blocks:
            if block.size == size and block.is_free:
                return block
        # Batches of another size (the last of an epoch, another window) make room for these.
        self._blocks = [b for b in self._blocks if b.size == size or not b.is_free]
        if len(self._blocks) >= _MOST_BLOCKS:
            return None
        try:
            block = SharedBlock(size)
        except OSError:
            return None
        self._blocks.append(block)
        return block


class Travelling(torch.Tensor):
    """A tensor over a whole block, on its way out of a worker. Never handed to users."""

    block: SharedBlock


def travelling(tensor: torch.Tensor, block: SharedBlock) -> Travelling:
    """Mark a tensor as lying in a block, so that sending it sends the block."""
    marked = tensor.as_subclass(Travelling)
    marked.block = block
    return marked


def _reduce(tensor: Travelling) -> tuple[Any, ...]:
    block = tensor.block
    plain = tensor.as_subclass(torch.Tensor)
    if block is None or not plain.is_contiguous():
        return _reduce_plain(plain)
    block.sent[0] = 1
    identity = os.fstat(block.handle).st_ino
    place = (os.getpid(), block.handle, identity, block.size)
    return (_arrive, (place, plain.dtype, tuple(plain.shape)))


ForkingPickler.register(Travelling, _reduce)

_mapped: dict[tuple[int, int, int, int], mmap.mmap] = {}


def _arrive(
    place: tuple[int, int, int, int], dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    """Rebuild a tensor in the receiving process, over the worker's own memory."""
    pages = _mapped.get(place)
    if pages is None:
        pages = _map(place)
    array = np.frombuffer(pages, np.uint8, place[3], _HEADER)
    weakref.finalize(array, _hand_back, pages, os.getpid()).atexit = False
    return torch.from_numpy(array).view(dtype).view(shape)


def _map(place: tuple[int, int, int, int]) -> mmap.mmap:
    process, handle, identity, size = place
    opened = os.open(f"/proc/{process}/fd/{handle}", os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(opened).st_ino != identity:
            raise RuntimeError("a DataLoader worker ended before its batch was received")
        pages = mmap.mmap(opened, _HEADER + size)
    finally:
        os.close(opened)
    for old in [known for known in _mapped if not os.path.exists(f"/proc/{known[0]}")]:
        del _mapped[old]  # blocks of workers that are gone; their last batches keep them mapped
    _mapped[place] = pages
    return pages


def _hand_back(pages: mmap.mmap, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must not give away what its parent still uses
        np.frombuffer(pages, np.int64, 1)[0] = 0


def is_possible() -> bool:
    """Whether this system has what a ring needs."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
