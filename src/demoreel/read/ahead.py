"""Batches that were announced: prepared by another thread, while this one still decodes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from demoreel.layouts.base import Column
from demoreel.read.pictures import Prepared
from demoreel.storage.far.threads import think_ahead
from demoreel.storage.forks import renew_in_children

_MOST = 8  # announced batches that nobody has come for


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch of which all bytes are on their way.

    Attributes:
        pictures: What only has to be decoded, by camera.
        rows: The other columns.
    """

    pictures: dict[str, Prepared]
    rows: Future[dict[str, Column]]


class Ahead:
    """The batches that are being prepared."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin anew in a forked child: what is under way will never arrive there."""
        self._plans: OrderedDict[bytes, Future[Plan]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, rows: np.ndarray, prepare: Callable[[], Plan]) -> None:
        """Begin to prepare a batch, unless that has begun."""
        key = rows.tobytes()
        with self._lock:
            if key not in self._plans:
                self._plans[key] = think_ahead(prepare)
                while len(self._plans) > _MOST:
                    self._plans.popitem(last=False)

    def take(self, rows: np.ndarray) -> Plan | None:
        """Return the plan of a batch, when it is ready; None if it was not announced.

        Raises:
            DemoreelError: What preparing it met.
        """
        if not self._plans:
            return None
        with self._lock:
            future = self._plans.pop(rows.tobytes(), None)
        return None if future is None else future.result()
