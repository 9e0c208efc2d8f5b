"""The metadata of a Lance dataset's older versions.

Lance versions tables; ``meta/`` is files beside them. Before these are replaced, they are kept::

    .versions/00000012/meta/   the metadata that belong to version 12 of the table of rows
    .versions/00000012/scores/ and other score files of that version, which edits renumber
    .versions/00000015.json    what was done to make version 15

A version without metadata of its own has those of the next one that has some: only indices differ
between them. Newer ones than all that were kept have ``meta/`` itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from demoreel.storage.commit.consistent import consistent_read
from demoreel.storage.commit.files import sync_path, write_whole
from demoreel.storage.commit.journal import Transaction, sync_all
from demoreel.storage.folder import score_files
from demoreel.storage.json_files import read_json
from demoreel.storage.names import OLD_METADATA

_NAME = re.compile(r"\d{8,}")
_COPIED = 1 << 20  # bytes up to which a file is copied


def metadata_of(root: Path, version: int) -> Path:
    """Return the folder of the metadata that belong to a version of the table of rows."""
    newer = [number for number in kept_versions(root) if number >= version]
    return root / OLD_METADATA / _name(min(newer)) / "meta" if newer else root / "meta"


def kept_versions(root: Path) -> list[int]:
    """Return the versions whose metadata were kept."""
    folder = root / OLD_METADATA
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(name) for name in names if _NAME.fullmatch(name))


def has_history(root: Path) -> bool:
    """Whether metadata of any version were kept. One stat."""
    return os.path.isdir(root / OLD_METADATA)


def keep_metadata(root: Path, version: int) -> None:
    """Keep the metadata as they are now, for good, as those of a version; once is enough.

    They appear whole or not at all, and must not change meanwhile. Large files are linked where
    the disk has links, and cost nothing; all of demoreel replaces files, and never writes into one.

    Args:
        root: The dataset's folder.
        version: The version of the table of rows that they belong to.
    """
    kept = root / OLD_METADATA / _name(version)
    if not kept.is_dir():
        with _copied(root) as copy:
            _publish(root, copy, version)
        return
    for name in score_files(root):  # programs may have written them since
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept / name, partial(shutil.copyfile, root / name))


def keep_settled(root: Path, newest: Callable[[], int]) -> None:
    """Keep the metadata of a dataset's newest version, which may be written to meanwhile.

    Args:
        root: The dataset's folder.
        newest: Returns the newest version of the table of rows.
    """
    with ExitStack() as copies:
        copy, version = consistent_read(
            root, lambda: (copies.enter_context(_copied(root)), newest())
        )
        if not (root / OLD_METADATA / _name(version)).is_dir():
            _publish(root, copy, version)


@contextmanager
def _copied(root: Path) -> Iterator[Path]:
    """Yield a copy of the metadata, aside; what was not published is removed."""
    (root / OLD_METADATA).mkdir(exist_ok=True)
    fresh = root / OLD_METADATA / f".new-{uuid.uuid4().hex[:12]}"
    try:
        copy_metadata(root / "meta", fresh / "meta")
        copy_scores(root, fresh)
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _publish(root: Path, copy: Path, version: int) -> None:
    sync_all([*copy.rglob("*"), copy])
    os.rename(copy, root / OLD_METADATA / _name(version))
    sync_path(root / OLD_METADATA)
    sync_path(root)


def copy_metadata(meta: Path, target: Path) -> None:
    """Copy all files of a folder of metadata into another one; large ones are linked."""
    for path in sorted(meta.rglob("*")):
        if path.is_file():
            place = target / path.relative_to(meta)
            place.parent.mkdir(parents=True, exist_ok=True)
            _keep(path, place)


def copy_scores(root: Path, target: Path) -> list[str]:
    """Copy the score files beside a dataset's metadata into another folder; return their names."""
    names = score_files(root)
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, target / name)  # others write into them
    return names


def _keep(path: Path, place: Path) -> None:
    # Other programs do write into small ones, info.json among them.
    if path.stat().st_size > _COPIED:
        try:
            os.link(path, place)
        except OSError:  # a disk without links
            pass
        else:
            return
    shutil.copyfile(path, place)


def note_version(changes: Transaction, version: int, did: str) -> None:
    """Announce a note of what was done to make a version."""
    note = json.dumps({"did": did}, ensure_ascii=False)
    changes.new(f"{OLD_METADATA}/{_name(version)}.json").write_text(note)


def notes(root: Path) -> dict[int, str]:
    """Return what was done to make versions, as far as that was noted."""
    found = {}
    for path in (root / OLD_METADATA).glob("*.json"):
        note: Any = read_json(path) if _NAME.fullmatch(path.stem) else None
        if isinstance(note, dict):
            found[int(path.stem)] = str(note.get("did", ""))
    return found


def _name(version: int) -> str:
    return f"{version:08d}"
