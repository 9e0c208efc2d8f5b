"""Conversions from and to places far away: fetched before, sent after.

A conversion reads and writes files. So a source far away is copied to this machine first, a target
far away is made here and sent when it is whole and verified; neither stays here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from demoreel.convert.options import Options
from demoreel.convert.progress import Progress, Stage
from demoreel.convert.report import ConvertReport, Verified
from demoreel.convert.source import identity
from demoreel.errors import ArgumentError
from demoreel.storage.far.fetch import far_state, local_copy, name_of
from demoreel.storage.far.send import FarTarget, far_target, refuse_far_overlap, refuse_far_target
from demoreel.storage.far.uris import is_far

PathLike = str | os.PathLike[str]
Convert = Callable[[Path, Path, Options], ConvertReport]

_STEPS = 1000
_NOT_WRITTEN = ("overwrite", "dry_run", "jobs", "progress")  # options that change no byte


def convert_far(
    source: PathLike,
    target: PathLike,
    options: Options,
    storage_options: Any,
    convert: Convert,
) -> ConvertReport:
    """Convert where source, target or both lie far away.

    Args:
        source: The dataset.
        target: What to make.
        options: What the caller wants.
        storage_options: As for ``demoreel.open``; for both.
        convert: Converts a folder to a folder.

    Raises:
        ArgumentError: Videos are to stay where they are.
        DemoreelError: As ``convert``, ``fetch_folder`` and ``far_target``.
    """
    if options.link:
        raise ArgumentError(
            "Videos can be linked only where source and target are folders.", hint="leave link out"
        )
    if not is_far(target):
        with _here(source, options, storage_options) as folder:
            report = convert(folder, Path(os.path.abspath(target)), options)
            return _called(report, source, report.target, folder)
    uri = os.fspath(target)
    refuse_far_overlap(source, uri)
    plain = replace(options, overwrite=False)
    if options.dry_run:
        refuse_far_target(uri, overwrite=options.overwrite, storage_options=storage_options)
        with _here(source, options, storage_options) as folder:
            beside = folder.parent / "dry-run" / name_of(uri)  # nothing is written there
            return _called(convert(folder, beside, plain), source, uri, folder)
    wanted = {n: v for n, v in _values(options).items() if n not in _NOT_WRITTEN}
    state = far_state(str(source), storage_options) if is_far(source) else identity(Path(source))
    with far_target(
        uri,
        *("convert", str(source), state, wanted),
        overwrite=options.overwrite,
        storage_options=storage_options,
    ) as out:
        report = _made_before(out, source) or _make(out, source, plain, storage_options, convert)
        sent = out.send(_steps(options, "send"))
        return replace(report, bytes_written=sent.bytes)


def _make(
    out: FarTarget, source: PathLike, options: Options, storage_options: Any, convert: Convert
) -> ConvertReport:
    with _here(source, options, storage_options) as folder:
        made = convert(folder, out.folder, options)
        report = _called(made, source, out.uri, folder, str(out.folder))
    out.note_made(report.to_json())
    return report


def _made_before(out: FarTarget, source: PathLike) -> ConvertReport | None:
    noted = out.made()
    if noted is None:
        return None
    verified = noted["verified"]
    changes = {
        "source": source if is_far(source) else Path(source),
        "verified": None if verified is None else Verified(**verified),
        "notes": tuple(noted["notes"]),
    }
    return ConvertReport(**{**noted, **changes})


@contextmanager
def _here(source: PathLike, options: Options, storage_options: Any) -> Iterator[Path]:
    """Yield the source's folder, or a copy of it."""
    if not is_far(source):
        yield Path(source)
        return
    with local_copy(
        str(source), storage_options=storage_options, report=_steps(options, "fetch")
    ) as folder:
        yield folder


def _called(
    report: ConvertReport, source: PathLike, target: Path | str, folder: Path, made: str = ""
) -> ConvertReport:
    """Return a report that names what the caller named, and not the copies."""
    notes = []
    for note in report.notes:
        note = note.replace(str(folder), str(source))
        notes.append(note.replace(made, str(target)) if made else note)
    return replace(
        report,
        source=str(source) if is_far(source) else report.source,
        target=target,
        notes=tuple(notes),
    )


def _values(options: Options) -> dict[str, Any]:
    return asdict(replace(options, progress=None))


def _steps(options: Options, stage: Stage) -> Callable[[float], None] | None:
    report = options.progress
    if report is None:
        return None
    since = time.monotonic()
    return lambda share: report(
        Progress(stage, 0, 0, round(_STEPS * share), _STEPS, time.monotonic() - since)
    )
