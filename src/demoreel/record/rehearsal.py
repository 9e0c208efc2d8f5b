"""Rehearsing a save: so that the first one takes no longer than those after it.

What is imported, started and prepared with the first save would take it a tenth of a second. So an
episode of nothing is made and thrown away when a recording begins, and again, beside the loop, when
the robot is given a task that it did not have yet: the file that names it is prepared then.
"""

from __future__ import annotations

import importlib
import logging
import threading

from demoreel.record.commit import Committer

log = logging.getLogger(__name__)


class Rehearsal:
    """Rehearses saves; for the thread that records.

    Construction takes some ten milliseconds, and the imports.

    Args:
        committer: Commits episodes; between ``see`` and ``wait`` nobody else may use it.
        task: The first task, if it is known.
    """

    def __init__(self, committer: Committer, *, task: str | None) -> None:
        importlib.import_module("demoreel.media.remux")  # what encoders say of their videos
        self._committer = committer
        self._thread: threading.Thread | None = None
        self._seen = {task}
        self._rehearse(task or "a task")

    def see(self, task: str) -> None:
        """Take note of a frame's task; one that is new is rehearsed beside the loop."""
        if task not in self._seen:
            self.wait()
            self._seen.add(task)
            self._thread = threading.Thread(
                target=self._rehearse, args=(task,), name="demoreel-rehearsal", daemon=True
            )
            self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being rehearsed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _rehearse(self, task: str) -> None:
        try:
            self._committer.rehearse(task)
        except Exception:  # the save itself will say, with all that is known of it by then
            log.debug("a rehearsal has failed", exc_info=True)
