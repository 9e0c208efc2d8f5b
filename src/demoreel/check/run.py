"""``check``: look at datasets, family by family, and report."""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from demoreel.check.codes import CODES, rank
from demoreel.check.findings import Finding, Findings
from demoreel.check.look import Look
from demoreel.check.look_episodes import first_line
from demoreel.check.report import Report
from demoreel.check.rows import RowCheck
from demoreel.check.thresholds import chosen
from demoreel.errors import ArgumentError, DatasetNotFoundError
from demoreel.storage.far.fetch import local_copies, part_of
from demoreel.storage.far.uris import is_far

log = logging.getLogger(__name__)

_FETCHING = 0.5  # of the work, where a dataset has to be fetched

FamilyName = Literal["metadata", "table", "video", "lance", "motion", "deep", "duplicate"]


@dataclass(frozen=True, slots=True)
class Family:
    """Checks that run together.

    Attributes:
        name: What they look at.
        place: The function of a ``Look`` that does it, as ``module:function``.
        deep: Whether they decode pictures, so that they run only if asked to.
        needs_episodes: Whether they make no sense where no episode is known.
    """

    name: FamilyName
    place: str
    deep: bool = False
    needs_episodes: bool = False


FAMILIES: tuple[Family, ...] = (
    Family("metadata", "demoreel.check.metadata:check_metadata"),
    Family("lance", "demoreel.check.lance:check_lance"),
    Family("table", "demoreel.check.tables:check_tables"),
    Family("video", "demoreel.check.videos:check_videos"),
    Family("deep", "demoreel.check.deep:check_deep", deep=True, needs_episodes=True),
    Family("duplicate", "demoreel.check.duplicates:check_duplicates", needs_episodes=True),
)
"""In the order in which they run. Motion looks at rows, with the tables: see ``ROW_CHECKS``."""

ROW_CHECKS: Mapping[FamilyName, str] = {
    "table": "demoreel.check.row_values:RowValues",
    "motion": "demoreel.check.motion:Motion",
    "duplicate": "demoreel.check.fingerprints:Fingerprints",
}
"""Classes of ``rows.RowCheck``, made with the ``Look``; they share one pass over the rows."""

LEAKS = "demoreel.check.leaks:check_leaks"
"""A function of a list of ``Look`` and a ``Findings``: the same episodes in several datasets."""


def check(
    *paths: str | os.PathLike[str],
    deep: bool = False,
    leaks: bool = False,
    only: Collection[FamilyName] | None = None,
    thresholds: Mapping[str, float] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    report: Callable[[float], None] | None = None,
) -> Report:
    """Look for everything that is wrong with datasets. Nothing is written.

    Cost: reads the metadata, every number in the tables once (2 million rows a second on two
    cores), and the videos' tables of packets; no picture is decoded unless ``deep``. Datasets that
    lie far away are fetched first, into a folder beside the user's cache (``DEMOREEL_STAGING``)
    that is removed again.

    Args:
        *paths: The datasets' folders, or their URIs.
        deep: Also decode every picture.
        leaks: Also look for the same episodes in several of the datasets.
        only: Run only these families of checks.
        thresholds: Numbers to decide by, by name; see ``demoreel.check.thresholds.THRESHOLDS``.
        storage_options: Of datasets that lie far away: as for ``demoreel.open``.
        report: Called with the share that is done.

    Returns:
        The report. Data that are broken, however badly, are findings and not errors.

    Raises:
        DatasetNotFoundError: There is nothing at a path.
        ArgumentError: There is no path, no such threshold or family, or only one dataset to look
            for leaks in.
        StoreError: A store does not answer.
    """
    values = chosen(thresholds)
    _refuse_nonsense(paths, leaks, only)
    fetching = part_of(report, 0.0, _FETCHING)
    with local_copies(paths, storage_options=storage_options, report=fetching) as copies:
        roots = [copies.get(str(path), Path(path)) for path in paths]
        rest = part_of(report, _FETCHING, 1.0) if copies else report
        found = _check(roots, values, deep=deep, leaks=leaks, only=only, report=rest)
        return found.called({str(copy): uri for uri, copy in copies.items()})


def _check(
    roots: list[Path],
    values: Mapping[str, float],
    *,
    deep: bool,
    leaks: bool,
    only: Collection[FamilyName] | None,
    report: Callable[[float], None] | None,
) -> Report:
    looks, collected = [], []
    facts = {}
    for number, root in enumerate(roots):
        look = Look(root, values)
        if report is not None:
            look.progress = partial(_report_share, report, number, len(roots))
        begin = time.perf_counter()
        _run_families(look, deep, only)
        look.facts["seconds"] = round(time.perf_counter() - begin, 3)
        looks.append(look)
        collected.append(look.findings)
        facts[str(root)] = look.facts
    if leaks:
        shared = Findings(str(roots[0]))
        _guarded(shared, "leaks", lambda: _loaded(LEAKS)(looks, shared))
        collected.append(shared)
    return _report(roots, collected, facts, values, deep)


def _refuse_nonsense(
    paths: Sequence[str | os.PathLike[str]], leaks: bool, only: Collection[FamilyName] | None
) -> None:
    if not paths:
        raise ArgumentError("There is no dataset to check.", hint="give at least one folder")
    unknown = sorted(set(only or ()) - set(get_args(FamilyName)))
    if unknown:
        known = ", ".join(get_args(FamilyName))
        raise ArgumentError(f"There is no family {unknown[0]!r}.", hint=f"there are: {known}")
    if leaks and len(paths) < 2:
        raise ArgumentError(
            "Leaks are looked for between datasets, and there is one.", hint="give both folders"
        )
    for root in (Path(path) for path in paths if not is_far(path)):
        if not root.is_dir():
            what = "There is nothing at this path." if not root.exists() else "This is no folder."
            raise DatasetNotFoundError(what, hint="give a dataset's folder", path=root)


def _report_share(report: Callable[[float], None], done: int, of: int, share: float) -> None:
    report((done + min(1.0, share)) / of)


def _run_families(look: Look, deep: bool, only: Collection[FamilyName] | None) -> None:
    whole = look.progress
    for number, family in enumerate(FAMILIES):
        look.progress = partial(_report_share, whole, number, len(FAMILIES))
        look.progress(0.0)
        runs = only is None or family.name in only
        if family.name == "table" and only is not None:
            runs = bool(set(ROW_CHECKS) & set(only))  # they are seen on the same way
        if not runs or (family.deep and not deep) or not _is_there(family.place):
            continue
        _guarded(look.findings, family.name, partial(_run_family, look, family, only))


def _run_family(look: Look, family: Family, only: Collection[FamilyName] | None) -> None:
    if family.needs_episodes and not look.episodes:
        return
    work = _loaded(family.place)
    if family.name == "table":
        work(look, _row_checks(look, only))
    else:
        work(look)


def _row_checks(look: Look, only: Collection[FamilyName] | None) -> list[RowCheck]:
    """Return the checks that want to see rows; without a known episode, only values can be seen."""
    wanted = [name for name in ROW_CHECKS if only is None or name in only]
    if not look.episodes:
        wanted = [name for name in wanted if name == "table"]
    return [_loaded(ROW_CHECKS[name])(look) for name in wanted if _is_there(ROW_CHECKS[name])]


def _is_there(place: str) -> bool:
    return find_spec(place.split(":")[0]) is not None


def _loaded(place: str) -> Any:
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def _guarded(findings: Findings, name: str, work: Callable[[], None]) -> None:
    """Run checks; what they did not foresee becomes a finding."""
    try:
        work()
    except Exception as error:  # whatever the data did to them, the other families go on
        log.debug("the checks of %s stopped", name, exc_info=True)
        findings.add(
            "check-failed",
            f"The checks of {name} stopped: {type(error).__name__}: {first_line(error)}.",
        )


def _place_in_report(finding: Finding, order: Mapping[str, int]) -> tuple[object, ...]:
    """The worst first, then by code, then by place: threads find things in any order."""
    where = finding.where
    episode, frame = (-1 if n is None else n for n in (where.episode, where.frame))
    place = (where.dataset, where.file or "", where.camera or "", episode, frame)
    return (-rank(finding.severity), order[finding.code], *place)


def _report(
    roots: Iterable[Path],
    collected: list[Findings],
    facts: Mapping[str, Mapping[str, object]],
    thresholds: Mapping[str, float],
    deep: bool,
) -> Report:
    counts: Counter[str] = Counter()
    for findings in collected:
        counts.update(findings.counts)
    kept = [finding for findings in collected for finding in findings.kept]
    order = {name: place for place, name in enumerate(CODES)}
    kept.sort(key=lambda finding: _place_in_report(finding, order))
    return Report(tuple(map(str, roots)), tuple(kept), dict(counts), facts, thresholds, deep)
