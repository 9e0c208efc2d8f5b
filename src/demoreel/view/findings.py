"""What ``demoreel check`` finds, for the pages: run in the background, by episode."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from demoreel.view.datasets import ShownDataset
from demoreel.view.jobs import Job, Jobs, Report

_MOST_SENT = 5000


@dataclass(frozen=True, slots=True)
class EpisodeFindings:
    """What was found in the episodes of a dataset.

    Attributes:
        listed: The findings, as JSON.
        counts: How many there are of each code; of a code, the first 200 are listed.
        by_episode: For an ``episode_index``, how many, the rank of the worst, and its severity.
        version: Differs for each run.
    """

    listed: list[dict[str, Any]] = field(default_factory=list)
    counts: Mapping[str, int] = field(default_factory=dict)
    by_episode: Mapping[int, tuple[int, int, str]] = field(default_factory=dict)
    version: int = 0


_NOTHING = EpisodeFindings()


class Checks:
    """The checks of a viewer's datasets, each run when a page asks for it."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._running: dict[str, tuple[int, Job]] = {}
        self._found: dict[str, tuple[int, EpisodeFindings]] = {}

    def start(self, shown: ShownDataset, *, deep: bool) -> Job:
        """Begin to check a dataset, or return the work that goes on.

        Cost: returns at once. Reads all numbers and the packet tables; a remote dataset is fetched.

        """
        shown.open()
        with self._lock:
            known = self._running.get(shown.id)
            if known is not None and known[1].is_running:
                return known[1]
            revision = shown.revision

            def work(report: Report) -> Any:
                found = _checked(shown, deep, report)
                with self._lock:
                    version = self._found.get(shown.id, (0, _NOTHING))[1].version + 1
                    self._found[shown.id] = revision, replace(found, version=version)
                return {"findings": len(found.listed)}

            job = self._jobs.start("check", work, cancels=True)
            self._running[shown.id] = revision, job
            return job

    def of(self, shown: ShownDataset) -> EpisodeFindings:
        """Return what the last check found that has ended; nothing before."""
        return self._found.get(shown.id, (0, _NOTHING))[1]

    def to_json(self, shown: ShownDataset) -> dict[str, Any]:
        """Return the state of a dataset's check, and what it found."""
        running = self._running.get(shown.id)
        revision, found = self._found.get(shown.id, (None, _NOTHING))
        return {
            "job": None if running is None else running[1].to_json(),
            "is_checked": revision is not None,
            "is_current": revision == shown.revision,
            "counts": dict(found.counts),
            "findings": found.listed[:_MOST_SENT],
            "left_out": max(0, len(found.listed) - _MOST_SENT),
        }


def _checked(shown: ShownDataset, deep: bool, report: Report) -> EpisodeFindings:
    import demoreel
    from demoreel.check.codes import rank  # heavy, and needed when a check runs

    found = demoreel.check(shown.place, deep=deep, report=report)
    by_episode: dict[int, tuple[int, int, str]] = {}
    for each in found.findings:
        number = each.where.episode
        if number is not None:
            count, worst, severity = by_episode.get(number, (0, -1, ""))
            if rank(each.severity) > worst:
                worst, severity = rank(each.severity), each.severity
            by_episode[number] = count + each.count, worst, severity
    return EpisodeFindings([each.to_json() for each in found.findings], found.counts, by_episode)
