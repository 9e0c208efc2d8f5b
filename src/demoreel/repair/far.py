"""Repairs from and to places far away: fetched before, sent after."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from demoreel.convert.source import identity
from demoreel.repair.report import Repaired
from demoreel.storage.far.fetch import far_state, local_copy
from demoreel.storage.far.send import far_target, refuse_far_overlap, refuse_far_target
from demoreel.storage.far.uris import is_far

PathLike = str | os.PathLike[str]


def repair_far(
    source: PathLike,
    target: PathLike | None,
    storage_options: Mapping[str, Any] | None,
    repair: Callable[[PathLike, PathLike | None], Repaired],
    *,
    dry_run: bool,
) -> Repaired:
    """Repair where source, target or both lie far away.

    Args:
        source: The dataset.
        target: What to make; None for a dry run.
        storage_options: As for ``demoreel.open``; for both.
        repair: Repairs a folder to a folder.
        dry_run: Whether nothing is to be written.

    Raises:
        DemoreelError: As ``repair``, ``fetch_folder`` and ``far_target``.
    """
    refuse_far_overlap(source, target)
    names: dict[str, str] = {}
    with ExitStack() as work:
        place = target
        out = None
        if target is not None and is_far(target):
            if dry_run:
                refuse_far_target(str(target), storage_options=storage_options)
                place = None
            else:
                far = is_far(source)
                state = far_state(str(source), storage_options) if far else identity(Path(source))
                out = work.enter_context(
                    far_target(
                        str(target),
                        *("repair", str(source), state),
                        storage_options=storage_options,
                    )
                )
                out.made()  # what an interrupted attempt left is mended once more
                place = out.folder
                names[str(out.folder)] = out.uri
        here = source
        if is_far(source):
            here = work.enter_context(local_copy(str(source), storage_options=storage_options))
            names[str(here)] = str(source)
        done = repair(here, place)
        if out is not None:
            out.send()
    return _called(done, names)


def _called(done: Repaired, names: Mapping[str, str]) -> Repaired:
    return replace(
        done,
        source=names.get(str(done.source), done.source),
        target=None if done.target is None else names.get(str(done.target), done.target),
        before=done.before.called(names),
        after=None if done.after is None else done.after.called(names),
    )
