"""Merging small files beside the recording."""

from __future__ import annotations

import logging
import threading
import time

from demoreel.errors import DemoreelError
from demoreel.layouts.appending import Appender

log = logging.getLogger(__name__)

_SOON_S = 0.01  # the frame that follows on an episode goes first


class Merger:
    """Merges a dataset's small files in a thread, a step at a time, whenever there are enough.

    The thread only waits and commits; the copying is done in another process.

    A step that fails costs nothing but the merging: episodes are safe in their small files.

    Args:
        appender: The dataset.
    """

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._wanted = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Look, soon, whether there is something to merge."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="demoreel-merger", daemon=True)
            self._thread.start()
        self._wanted.set()

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            time.sleep(_SOON_S)
            try:
                while not self._over and self._appender.compact(aside=True):
                    pass
            except (DemoreelError, OSError) as error:
                log.warning("small files stay unmerged for now: %s", error)
            if self._over:
                return

    def stop(self) -> None:
        """End after the step that is being done."""
        self._over = True
        if self._thread is not None:
            self._wanted.set()
            self._thread.join()
            self._thread = None
