"""Conversions from and to remote places; see ``run/anywhere.py``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from demoreel.convert.options import Options
from demoreel.convert.progress import Progress, Stage
from demoreel.convert.report import ConvertReport
from demoreel.errors import ArgumentError
from demoreel.run.anywhere import made_anywhere
from demoreel.storage.remote.fetch import name_of
from demoreel.storage.store import is_uri

PathLike = str | os.PathLike[str]
Convert = Callable[[Path, Path, Options], ConvertReport]

_STEPS = 1000
_NOT_WRITTEN = ("overwrite", "dry_run", "jobs", "progress")  # options that change no byte


def convert_remote(
    source: PathLike,
    target: PathLike,
    options: Options,
    storage_options: Any,
    convert: Convert,
) -> ConvertReport:
    """Convert where source, target or both are remote.

    Args:
        source: The dataset.
        target: What to make.
        options: What the caller wants.
        storage_options: As for ``demoreel.open``; for both.
        convert: Converts a folder to a folder.

    Raises:
        ArgumentError: Videos are to stay where they are.
        DemoreelError: As ``convert`` and ``made_anywhere``.
    """
    if options.link:
        raise ArgumentError(
            "Videos can be linked only where source and target are folders.", hint="leave link out"
        )
    plain = replace(options, overwrite=False) if is_uri(target) else options

    def make(folder: Path, place: Path | None) -> ConvertReport:
        if place is None:  # nothing is written there
            place = folder.parent / "dry-run" / name_of(str(target))
        place = Path(os.path.abspath(place))
        names = {str(folder): str(source), str(place): str(target)}
        return _called(convert(folder, place, plain), source, target, names)

    wanted = asdict(replace(options, progress=None))
    report, sent = made_anywhere(
        source,
        target,
        make,
        work=("convert", {n: v for n, v in wanted.items() if n not in _NOT_WRITTEN}),
        note=ConvertReport.to_json,
        noted=ConvertReport.from_json,
        overwrite=options.overwrite,
        dry_run=options.dry_run,
        storage_options=storage_options,
        fetching=_steps(options, "fetch"),
        sending=_steps(options, "send"),
    )
    if sent is None:
        return report
    named = str(source) if is_uri(source) else Path(source)
    return replace(report, source=named, target=str(target), bytes_written=sent.bytes)


def _called(
    report: ConvertReport, source: PathLike, target: PathLike, names: dict[str, str]
) -> ConvertReport:
    """Return a report that names what the caller named, and not the copies."""
    notes = []
    for note in report.notes:
        for copy, name in names.items():
            note = note.replace(copy, name)
        notes.append(note)
    return replace(
        report,
        source=str(source) if is_uri(source) else report.source,
        target=str(target) if is_uri(target) else report.target,
        notes=tuple(notes),
    )


def _steps(options: Options, stage: Stage) -> Callable[[float], None] | None:
    report = options.progress
    if report is None:
        return None
    since = time.monotonic()
    return lambda share: report(
        Progress(stage, 0, 0, round(_STEPS * share), _STEPS, time.monotonic() - since)
    )
