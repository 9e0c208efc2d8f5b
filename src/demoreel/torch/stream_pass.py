"""One pass through an epoch: places become frames, frames become samples or batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demoreel.read.order import FrameOrder, Share
from demoreel.torch.collate import collate_samples
from demoreel.torch.dataset import LeRobotDataset
from demoreel.torch.stream_position import Position


@dataclass(slots=True)
class Progress:
    """How far a pass has come.

    Attributes:
        begin: Where it began.
        share: What is read of the epoch: by this process, or by all workers of the rank.
        delivered: Batches, or single samples, that it has handed out.
    """

    begin: Position
    share: Share
    delivered: int = 0

    @property
    def position(self) -> Position:
        """Where another pass would go on, when all ranks have come as far."""
        size = self.share.size if self.share.whole_batches else 1
        samples = min(self.share.samples, self.delivered * size)
        return Position(self.begin.seed, self.begin.epoch, self.share.consumed_after(samples))


class Pass(Iterator[dict[str, Any]]):
    """Hands out what a share holds of an order.

    No error ends it: what could not be read is tried again by the next call of ``next``, and an
    error that stays is raised again. So an end is always the epoch's end.

    Args:
        dataset: Reads the items.
        order: Which frame comes when.
        progress: Is kept up to date; a ``delivered`` that is not 0 is where to begin.
        finish: Called once, at the end.
    """

    def __init__(
        self,
        dataset: LeRobotDataset,
        order: FrameOrder,
        progress: Progress,
        finish: Callable[[], None],
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._progress = progress
        self._finish: Callable[[], None] | None = finish
        self._share = progress.share
        self._ready: deque[dict[str, Any]] = deque()
        self._step, self._skip = progress.delivered, 0
        if not self._share.whole_batches:
            self._step, self._skip = divmod(progress.delivered, self._share.size)

    def __next__(self) -> dict[str, Any]:
        if not self._ready:
            if self._step >= self._share.steps:
                self._end()
            self._ready.extend(self._read())
        self._progress.delivered += 1
        return self._ready.popleft()

    def _end(self) -> None:
        if self._finish is not None:
            self._finish()
        self._finish = None
        raise StopIteration

    def _read(self) -> Sequence[dict[str, Any]]:
        """Read the next step: one batch, or samples that are handed out one by one."""
        frames = self._frames(self._step)
        if self._dataset.reader.is_far and self._step + 1 < self._share.steps:
            # The next step's bytes travel while this one is decoded.
            self._dataset.reader.prefetch(self._frames(self._step + 1))
        items = self._dataset.__getitems__(frames.tolist())
        self._step += 1
        if self._share.whole_batches:
            return [collate_samples(items)]
        skip, self._skip = self._skip, 0
        return items[skip:]

    def _frames(self, step: int) -> np.ndarray:
        return self._order.at(self._share.places(step))
