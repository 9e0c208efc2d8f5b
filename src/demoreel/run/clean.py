"""``demoreel.clean``: finds and removes files that killed processes left.

Only folders are removed whose names are exactly those that demoreel gives, that hold a lock with
demoreel's marker, and whose lock no living process holds; see ``storage/commit/hidden_folder.py``.
Inside a dataset, the writer's lock is held meanwhile. Saved episodes, commits that are not in place
yet and ``NAME_old`` are data: they are listed, and stay.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from demoreel.errors import (
    ArgumentError,
    DatasetBusyError,
    DatasetNotFoundError,
    UnsafePathError,
)
from demoreel.layouts.pending import finish_command
from demoreel.layouts.persisted_files import MANIFEST, WORKDIR, persisted_folders, unsaved
from demoreel.storage.commit.hidden_folder import (
    about,
    claim_dead,
    hidden_folders,
    holds_data,
    remove_hidden,
    standing,
)
from demoreel.storage.commit.journal import is_pending, staging_folders
from demoreel.storage.commit.writer_lock import HIDDEN, WriterLock
from demoreel.storage.names import OLD_METADATA
from demoreel.storage.remote.fetch import working_folders
from demoreel.storage.scratch import dead_scratch, remove_scratch
from demoreel.storage.store import is_uri

Kind = Literal[
    "convert", "cut", "pull", "repair", "staging", "replace", "copy", "send",
    "commit", "recording", "metadata", "scratch", "old",
]  # fmt: skip
"""What left it: a command; what is fetched (``copy``) or sent (``send``) of a remote dataset; in a
dataset a ``commit`` that never happened, a ``recording``, a copy of ``metadata``; ``scratch`` files
of readers; ``old``: a dataset that another one replaced."""

_COPY = re.compile(r"\.new-[0-9a-f]{12}")
_OLD_S = 3600
_GOES_ON = ("convert", "cut", "pull", "copy", "send", "replace")
_WHY_KEPT = {
    "in use": "a living process works there",
    "elsewhere": "another machine made it, and may be at it still: clean it there",
    "foreign": "it has no lock of demoreel's: if it is of an older version, delete it yourself",
}


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that was left behind.

    Attributes:
        path: Where it is.
        kind: What left it.
        bytes: Its size.
        resumable: Whether the same command would continue from it.
        why: What it is, or why it stays.
    """

    path: Path
    kind: Kind
    bytes: int
    resumable: bool
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return {**asdict(self), "path": str(self.path)}


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What ``clean`` found.

    Attributes:
        path: What was to be cleaned.
        removed: What was removed; of a dry run, what would be.
        kept: What is left behind, too, and stays: it is data, in use, or not known to be ours.
        dry_run: Whether nothing was removed.
    """

    path: str
    removed: tuple[Leftover, ...]
    kept: tuple[Leftover, ...]
    dry_run: bool

    @property
    def bytes(self) -> int:
        """Bytes of what was removed."""
        return sum(leftover.bytes for leftover in self.removed)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "path": self.path,
            "removed": [leftover.to_json() for leftover in self.removed],
            "kept": [leftover.to_json() for leftover in self.kept],
            "bytes": self.bytes,
            "dry_run": self.dry_run,
        }


def clean(path: str | os.PathLike[str], *, dry_run: bool = False) -> Cleaned:
    """Remove what killed commands left of a dataset, or of all datasets in a folder.

    Looks beside ``path`` for staging folders of commands that were to make it, inside it for what
    killed recordings and edits left, in datasets and staging folders that are in it; and in the
    system's temporary folder for scratch files of processes of this user that are gone. Of a URI:
    for what was fetched or made on this machine, and was to be sent.

    What another process uses, saved episodes that are not encoded yet, commits that are not in
    place yet, and datasets that were replaced (``NAME_old``) are never removed. Work that the same
    command would continue from is.

    Args:
        path: A dataset, a folder of datasets, or a target that was never finished; or a URI.
        dry_run: Only look.

    Returns:
        What was removed, and what stays.

    Raises:
        DatasetNotFoundError: There is nothing at ``path``, and nothing was left beside it.
        ArgumentError: ``path`` is a link that leads nowhere, or no folder.
        OSError: Something cannot be removed.
    """
    if is_uri(path):
        uri = os.fspath(path).rstrip("/")
        found = [_hidden(folder, _kind(folder)) for folder in working_folders() if _is(folder, uri)]
        return _cleaned(uri, found, [], dry_run)
    root = Path(os.path.abspath(path))
    if os.path.lexists(root) and not root.is_dir():
        raise ArgumentError("This is no folder.", hint="give a dataset's folder", path=root)
    beside = list(_beside(root))
    if not root.exists() and not beside:
        raise DatasetNotFoundError(
            "There is nothing at this path, and nothing was left beside it.",
            hint="give a dataset's folder, a folder of datasets, or a target that was not finished",
            path=root,
        )
    found = [*beside, *_inside(root), *_scratch()]
    datasets = [place for place in (root, *_folders_of(root)) if _is_folder(place / HIDDEN)]
    return _cleaned(str(root), found, datasets, dry_run)


def _cleaned(path: str, found: list[_Leftovers], datasets: list[Path], dry_run: bool) -> Cleaned:
    removed: list[Leftover] = []
    kept: list[Leftover] = []
    for one in found:
        gone = one.removable and (dry_run or _removed(one.leftover))
        (removed if gone else kept).append(one.leftover)
    for dataset in datasets:
        for one in _in_dataset(dataset, dry_run=dry_run):
            (removed if one.removable else kept).append(one.leftover)
    return Cleaned(path, tuple(removed), tuple(kept), dry_run)


@dataclass(frozen=True, slots=True)
class _Leftovers:
    leftover: Leftover
    removable: bool


def _beside(root: Path) -> Iterator[_Leftovers]:
    parent = next((place for place in root.parents if place.is_dir()), root.parent)
    for folder, name in hidden_folders(parent):
        if name.target == root.name:
            yield _hidden(folder, name.kind)  # type: ignore[arg-type]
    old = root.with_name(f"{root.name}_old")
    if _is_folder(old / "meta"):
        why = "the dataset as it was before it was replaced: delete it yourself"
        yield _Leftovers(Leftover(old, "old", _size(old), False, why), False)


def _inside(root: Path) -> Iterator[_Leftovers]:
    for folder, name in hidden_folders(root):
        yield _hidden(folder, name.kind)  # type: ignore[arg-type]


def _hidden(folder: Path, kind: Kind) -> _Leftovers:
    stands = standing(folder)
    if stands == "dead" and holds_data(folder):
        why = "it may hold a dataset that was being replaced: the same command finishes that"
        return _Leftovers(Leftover(folder, kind, _size(folder), True, why), False)
    resumable = kind in _GOES_ON
    why = _WHY_KEPT.get(stands) or (
        f"the same command would continue from it ({about(folder)})" if resumable else "of no use"
    )
    leftover = Leftover(folder, kind, _size(folder), resumable, why)
    return _Leftovers(leftover, stands == "dead")


def _scratch() -> Iterator[_Leftovers]:
    for folder in dead_scratch():
        why = "scratch files of a process that is gone"
        yield _Leftovers(Leftover(folder, "scratch", _size(folder), False, why), True)


def _removed(leftover: Leftover) -> bool:
    """Remove a folder if no process uses it now."""
    if leftover.kind == "scratch":
        return remove_scratch(leftover.path)
    with suppress(OSError):
        os.rmdir(leftover.path)  # empty: a kill came just before its lock was made, or after
        return True
    lock = claim_dead(leftover.path)
    if lock is None:
        return False
    try:
        remove_hidden(leftover.path)
        if leftover.path.exists():
            shutil.rmtree(leftover.path)
    finally:
        os.close(lock)
    return True


def _in_dataset(root: Path, *, dry_run: bool) -> list[_Leftovers]:
    """Look into a dataset, and remove what is of no use; no process may write meanwhile."""
    try:
        # Where there is no lock, no process writes, and a dry run makes none.
        has_lock = os.path.lexists(root / HIDDEN / "lock")
        lock = WriterLock(root, patience_s=0) if has_lock or not dry_run else None
    except (DatasetBusyError, UnsafePathError) as error:
        leftover = Leftover(root / HIDDEN, "recording", 0, False, error.what)
        return [_Leftovers(leftover, False)]
    with closing(_Held(lock)) if lock is not None else nullcontext():
        found = [*_left_in(root), *_waiting_in(root)]
        for one in found:
            if one.removable and not dry_run:
                path = one.leftover.path
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        with suppress(OSError):  # where that is the only thing that is left
            if not dry_run:
                os.rmdir(root / WORKDIR)
    return found


class _Held:
    def __init__(self, lock: WriterLock) -> None:
        self._lock = lock

    def close(self) -> None:
        self._lock.release(remove=True)


def _left_in(root: Path) -> Iterator[_Leftovers]:
    workdir, kept = root / WORKDIR, root / OLD_METADATA
    parts: list[tuple[Path, Kind, str]] = []
    if not is_pending(root):
        folders = [path for path in staging_folders(root) if _is_folder(path)]
        parts += [(path, "commit", "of a commit that never happened") for path in folders]
    for path in unsaved(workdir) if _is_in_place(workdir) else ():
        of = "a trial of an encoder" if path.suffix == ".mp4" else "an episode that was not saved"
        parts.append((path, "recording", f"of {of}"))
    for path in _named(kept, _COPY):
        # Naming a version takes no lock: what is young may be in use.
        if _is_folder(path) and time.time() - path.stat().st_mtime > _OLD_S:
            parts.append((path, "metadata", "of a version that was not kept"))
    for path, kind, why in parts:
        yield _Leftovers(Leftover(path, kind, _size(path), False, why), True)


def _waiting_in(root: Path) -> Iterator[_Leftovers]:
    if is_pending(root):
        path, why = root / HIDDEN / "journal.json", "a commit that is not in place yet"
        yield _Leftovers(Leftover(path, "commit", _size(path.parent), True, why), False)
    for path in persisted_folders(root) if _is_in_place(root / WORKDIR) else ():
        manifest = path / MANIFEST
        why = f"a saved episode that is not encoded yet: {finish_command(root)}"
        if os.path.lexists(manifest) and not stat.S_ISREG(os.lstat(manifest).st_mode):
            why = f"its {MANIFEST} is no plain file: put that back, or delete the folder"
        yield _Leftovers(Leftover(path, "recording", _size(path), True, why), False)


def _named(folder: Path, name: re.Pattern[str]) -> list[Path]:
    """Return what of a folder has such a name; nothing of a link."""
    if not _is_in_place(folder):
        return []
    return [folder / entry for entry in sorted(os.listdir(folder)) if name.fullmatch(entry)]


def _folders_of(root: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from (Path(e.path) for e in os.scandir(root) if e.is_dir(follow_symlinks=False))


def _is_in_place(folder: Path) -> bool:
    """Whether no link leads there, out of the dataset."""
    return _is_folder(folder) and not folder.parent.is_symlink()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _kind(folder: Path) -> Kind:
    return "send" if folder.name.startswith("send") else "copy"


def _is(folder: Path, uri: str) -> bool:
    return (about(folder) or "").rstrip("/") == uri


def _size(path: Path) -> int:
    if not _is_folder(path):
        return path.lstat().st_size if os.path.lexists(path) else 0
    total = 0
    for parent, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total
