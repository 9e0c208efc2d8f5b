"""What differs between a dataset and its repaired copy, beside rows and videos."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demoreel.check.catalogue import CODES
from demoreel.check.codes import REPAIR
from demoreel.check.look import Look
from demoreel.check.report import Report
from demoreel.layouts.meta import read_raw_info
from demoreel.model import DEFAULT_FEATURES
from demoreel.model.feature import quoted
from demoreel.repair.changes import Changes
from demoreel.repair.texts import form_of

_SAID_ELSEWHERE = ("features", "fps")
_SHOWN = (  # by what is said of rows, of info.json and of its features
    "camera-declared-twice",
    "column-",
    "feature-",
    "frame-index-jump",
    "index-jump",
    "split-",
    "timestamp-",
    "total-",
    "version-",
    "video-codec",
    "video-fps",
    "video-pix-fmt",
    "video-size",
)
_OF_DATA = ("picture-", "rows-", "table-", "value-", "video-")


def note_differences(
    look: Look, target: Path, before: Report, after: Report, changes: Changes, *, is_less: bool
) -> None:
    """Note what ``info.json`` says otherwise, and the findings of ``check`` that are no more.

    Args:
        look: The source.
        target: The result.
        before: What ``check`` said of the source.
        after: What it says of the result.
        changes: Takes what differs.
        is_less: Whether episodes or cameras were left out: what was wrong with them is not fixed.
    """
    old, new = look.raw, read_raw_info(target / "meta" / "info.json") or {}
    if old is None:
        changes.add("info.json was written anew")
    else:
        _note_fields(old, new, changes)
        _note_defaults(old.get("features"), new["features"], changes)
    table = "meta/tasks.parquet"
    if table in look.files and form_of(look.root / table) != form_of(target / table):
        changes.add("tasks.parquet was written in lerobot's form: the texts are its index")
    left = {finding.code for finding in after.findings}
    said = (*_SHOWN, *_OF_DATA) if is_less else _SHOWN
    for code, places in sorted(before.counts.items()):
        if code not in left and CODES[code].mend == REPAIR and not code.startswith(said):
            title = CODES[code].title
            times = f" ({places} places)" if places > 1 else ""
            changes.add(f"{code} is fixed: {title[0].lower()}{title[1:]}{times}")


def _note_fields(old: Mapping[str, Any], new: Mapping[str, Any], changes: Changes) -> None:
    for name in {**old, **new}:
        if name in _SAID_ELSEWHERE or repr(old.get(name)) == repr(new.get(name)):  # NaN != NaN
            continue
        if old.get(name) == new.get(name):
            continue
        if name not in new:
            changes.add(f"info.json: {quoted(name)} was removed")
        elif old.get(name) is None:
            changes.add(f"info.json: {name} is {quoted(new[name])}, which was missing")
        else:
            changes.add(f"info.json: {name} is {quoted(new[name])}, not {quoted(old[name])}")


def _note_defaults(old: object, new: Mapping[str, Any], changes: Changes) -> None:
    """Note the columns of the format's own that were declared otherwise."""
    for key in DEFAULT_FEATURES:
        said = old.get(key) if isinstance(old, Mapping) else None
        if not isinstance(said, Mapping):
            changes.add("info.json: the column was declared", key)
            continue
        for name in ("dtype", "shape"):
            if said.get(name) != new[key][name]:
                what = f"its {name} is {new[key][name]}, not {quoted(said.get(name))}"
                changes.add(what, f"info.json: {key}")
