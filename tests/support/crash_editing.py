"""Edits in place that are made to be killed."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import demoreel

WHOLE = "whole"
"""The tag of the version that ``edit_for_ever`` goes back to."""


def edit_for_ever(report: Connection, root: Path, episode: int, most: int = 200) -> None:
    """Delete an episode in place, go back, and so on; report the number of each. To be killed.

    Args:
        report: Gets ``begun``, then the number of each edit that is safe.
        root: The dataset's folder; one of its versions is tagged ``whole``.
        episode: The episode to delete.
        most: How many edits to make.
    """
    demoreel.finish(root)
    whole = len(demoreel.open(root, tag=WHOLE).episodes)
    report.send("begun")
    for number in range(most):
        if len(demoreel.open(root).episodes) == whole:
            demoreel.cut(root).delete(episode).render_in_place()
        else:
            demoreel.checkout(root, WHOLE)
        report.send(number)
