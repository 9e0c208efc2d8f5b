"""Batches without copies, also through torch's own ``default_collate``.

A batch is decoded into one array per key. Handed to a ``DataLoader`` as a list of samples, it would
be torn apart only to be copied together again: 29 MB for 32 pictures of 480x640. So a sample
remembers the batch it was cut from, and torch's documented extension point
(``default_collate_fn_map``) puts samples that still are that batch back together for nothing.
Samples that were changed, filtered or reordered on the way are collated the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data.dataloader import default_collate

from demoreel.torch.memory import TensorBatch


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
    """Collate samples; a whole batch that nobody changed is returned as it was decoded."""
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
