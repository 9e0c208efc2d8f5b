"""The tasks of a dataset: what the robot was asked to do, by task index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from demoreel.errors import MetadataError, count


class Tasks(Mapping[int, str]):
    """Task texts by ``task_index``.

    Indices need not be contiguous nor in order: a text is found by its index, not by its line.
    """

    __slots__ = ("_by_index", "_by_text")

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._by_index = dict(sorted(texts.items()))
        self._by_text = {text: index for index, text in self._by_index.items()}

    @classmethod
    def of(cls, texts: Sequence[str]) -> Tasks:
        """Number these texts from 0."""
        return cls(dict(enumerate(texts)))

    def __getitem__(self, index: int) -> str:
        try:
            return self._by_index[int(index)]
        except KeyError:
            raise MetadataError(
                f"A row names task_index {index}, but the tasks file has no such task.",
                hint="the tasks file and the tables were not written together",
                known=count(len(self), "task"),
            ) from None

    def get(self, index: int, default: Any = None) -> Any:
        """Return the text, or ``default`` where there is no such task."""
        return self._by_index.get(index, default)

    def texts(self, indices: np.ndarray) -> list[str]:
        """Return the text of each index."""
        return [self[index] for index in indices.tolist()]

    def index_of(self, text: str) -> int:
        """Return the index of a text; KeyError if there is none."""
        return self._by_text[text]

    def __contains__(self, index: object) -> bool:
        return index in self._by_index

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_index)

    def __len__(self) -> int:
        return len(self._by_index)

    def __repr__(self) -> str:
        return f"Tasks({self._by_index!r})"
