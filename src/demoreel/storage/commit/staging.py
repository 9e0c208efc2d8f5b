"""Where tasks write before their work is whole: a hidden folder that one rename makes the target.

::

    .NAME.cut-1a2b3c4d5e6f/    beside the target; the letters are the plan's fingerprint
        lock                   held while a process works here; see ``hidden_folder.py``
        dataset/               becomes the target
        notes/TASK.json        what a finished task has to say; its files were on disk before
        parts/                 what tasks hand on to the commit
        order.json             what is being written, for the process that finishes it
        made.json              which dataset has become the target, or is about to

A process may be killed at any instant: the target is absent or whole, and the next process with the
same plan finds the notes and does the rest, or finds that nothing is left to do. Once another plan
has made the target, it is of no use and removed. Several machines may work in one folder at a time,
each on tasks of its own.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from demoreel.errors import DatasetBusyError, DiskFullError
from demoreel.storage.commit.files import (
    put_in_place,
    refuse_existing,
    says_no_room,
    sync_all,
    sync_path,
    sync_tree,
)
from demoreel.storage.commit.hidden_folder import (
    MADE,
    lock_folder,
    make_parents,
    passing_folder,
    remove_dead,
    remove_empty,
    remove_hidden,
    remove_outdated,
)
from demoreel.storage.commit.replace import replacing
from demoreel.storage.commit.writer_lock import WriterLock

ORDER = "order.json"
"""What is being written, for the process that finishes it."""


class Staging:
    """The hidden folder of one piece of work; made by ``staging``.

    Attributes:
        folder: The hidden folder.
        target: What it will become.
        dataset: The folder for tasks to write to.
        parts: The folder for what tasks hand on.
        committed: Whether the target is there: from the start, if an earlier attempt was killed
            when it had done all.
    """

    def __init__(
        self, folder: Path, target: Path, work: str = "", *, replaces: bool = False
    ) -> None:
        self.folder = folder
        self.target = target
        self.dataset = folder / "dataset"
        self.parts = folder / "parts"
        self._notes = folder / "notes"
        self.committed = is_made(folder, target, work)
        self._work = work
        self._replaces = replaces
        self._noting: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="demoreel-sync")
        if not self.committed:
            for place in (self.dataset, self.parts, self._notes):
                place.mkdir(exist_ok=True)

    def done(self, task: str) -> dict[str, Any] | None:
        """Return what a task noted when it had ended, here or elsewhere; None if it has not."""
        try:
            note = json.loads((self._notes / f"{task}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) and self._is_there(note) else None

    def _is_there(self, note: dict[str, Any]) -> bool:
        """Whether the files that a note names have the sizes that it says."""
        try:
            return all(
                (self.folder / name).stat().st_size == size
                for name, size in note.get("files", {}).items()
            )
        except OSError:
            return False

    def note(self, task: str, result: dict[str, Any]) -> None:
        """Force a task's files to disk, then note that it has ended; both in the background."""
        self._noting.append(self._thread.submit(self._note, task, result))

    def _note(self, task: str, result: dict[str, Any]) -> None:
        for name in result.get("files", {}):
            sync_path(self.folder / name)
        # A note that a crash of the machine loses does no harm; one without its files would.
        fresh = self._notes / f".{task}.new"
        fresh.write_text(json.dumps(result))
        os.replace(fresh, self._notes / f"{task}.json")

    def settle(self) -> None:
        """Wait until all that was to be noted is on disk."""
        while self._noting:
            self._noting.pop(0).result()

    def clear(self) -> None:
        """Remove what is of no use once the target is there."""
        for place in self.folder.iterdir():
            if place.is_dir():
                shutil.rmtree(place, ignore_errors=True)
            elif place.name == ORDER:
                place.unlink()

    def close(self) -> None:
        """Let go of the background thread, when it has noted what there is."""
        self._thread.shutdown()

    def commit(self) -> None:
        """Make ``dataset`` the target, as one step, when all of it is on disk.

        Files that no task has noted must have been synced to disk.
        """
        self.settle()
        if not self._replaces:
            refuse_existing(self.target)
        sync_all(Path(parent) for parent, _, _ in os.walk(self.dataset))
        note_made(self.folder, self.dataset, self._work)
        if self._replaces:
            with WriterLock(self.target), replacing(self.target, keep=None) as new:
                os.rename(self.dataset, new)
            self.committed = True
            return
        try:
            os.rename(self.dataset, self.target)
        except OSError:
            refuse_existing(self.target)
            raise
        self.committed = True
        sync_path(self.target.parent)


def staging_folder(target: Path, *, kind: str, fingerprint: str) -> Path:
    """Return the hidden folder of a piece of work; it need not be there."""
    return target.with_name(f".{target.name}.{kind}-{fingerprint[:12]}")


def was_made(target: Path, *, kind: str, fingerprint: str, work: str = "") -> bool:
    """Whether a piece of work is done, and what is at ``target`` is its result, unchanged.

    After the commit that is known only if the process was killed, or was to ``remember`` it.
    """
    return is_made(staging_folder(target, kind=kind, fingerprint=fingerprint), target, work)


def forget(target: Path, *, kind: str, fingerprint: str, work: str = "") -> None:
    """Remove what ``staging`` was asked to remember of a target, unless a process works on it."""
    folder = staging_folder(target, kind=kind, fingerprint=fingerprint)
    if not is_made(folder, target, work):
        return
    with suppress(DatasetBusyError):
        lock = lock_folder(folder, target)
        if is_made(folder, target, work):
            remove_hidden(folder)
        os.close(lock)


@contextmanager
def staging(
    target: Path,
    *,
    kind: str,
    fingerprint: str,
    work: str = "",
    shared: bool = False,
    remember: bool = False,
    resumable: bool = True,
    resumable_after: tuple[type[Exception], ...] = (),
    replaces: bool = False,
) -> Iterator[Staging]:
    """Yield the folder of a piece of work, with what an earlier attempt has left in it.

    It is gone after a commit, and after an error that would come again. It stays after a kill,
    Ctrl-C and a full disk, and where it is shared, for the same command to continue from.

    An earlier attempt may have done all: then it is committed when the block begins.

    Args:
        target: What it is to become. Its parent is made if need be.
        kind: Names the folder, with the fingerprint.
        fingerprint: Equal for two pieces of work only if they write the same.
        work: What else tells whether the result of an earlier attempt is the one that is wanted.
        shared: Whether others may work here at the same time, on other tasks.
        remember: After the commit, keep the note that the target is made, until ``forget``: of
            several targets, those that are there stay so if a later one fails.
        resumable: Whether the work continues after Ctrl-C or a full disk, as it does after a kill.
        resumable_after: Errors that leave something to continue from, too.
        replaces: Whether ``target`` is a dataset that the commit replaces.
    """
    if not replaces and not was_made(target, kind=kind, fingerprint=fingerprint, work=work):
        refuse_existing(target)
    made = make_parents(target.parent)
    remove_dead(target.parent)
    folder = staging_folder(target, kind=kind, fingerprint=fingerprint)
    lock = lock_folder(folder, target, shared=shared)
    keep = False
    interruptions: tuple[type[BaseException], ...] = (KeyboardInterrupt, *resumable_after)
    try:
        place = Staging(folder, target, work, replaces=replaces)
        if not place.committed:
            if not replaces:
                refuse_existing(target)  # when we looked, we had no lock yet
            forget_made(folder)
        keep = shared
        try:
            yield place
            place.settle()
        finally:
            place.close()
        keep = remember if place.committed else shared
        if keep and place.committed:
            place.clear()
        if place.committed:
            remove_outdated(target)
    except interruptions:
        keep = keep or resumable
        raise
    except OSError as error:
        keep = keep or (resumable and says_no_room(error))
        if says_no_room(error) and not isinstance(error, DiskFullError):
            raise _disk_full(target, folder if keep else None) from error
        raise
    finally:
        if not keep:
            remove_hidden(folder)
            remove_empty(made)
        os.close(lock)


def refuse_small_disk(target: Path, wanted: int) -> None:
    """Refuse to begin what the disk has no room for."""
    place = next(parent for parent in (target, *target.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if free < wanted:
        raise DiskFullError(
            f"The disk has {free / 1e6:,.0f} MB left; {wanted / 1e6:,.0f} MB are needed.",
            hint="free some room, or choose another disk; nothing was written",
            path=target,
        )


def _disk_full(target: Path, folder: Path | None) -> DiskFullError:
    return DiskFullError(
        "There is no room left on the disk.",
        hint="free some, and the same command continues from here; or delete what it has begun"
        if folder is not None
        else "nothing was kept; make room, or choose a folder on another disk",
        path=target,
        begun=folder,
    )


@contextmanager
def staged(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder that becomes ``target`` when the block ends well.

    If the block raises, the folder is removed and nothing has happened. After a crash or
    ``kill -9`` the hidden folder ``.NAME.staging-XXXX`` may stay behind; no reader looks at it, and
    the next write to the same parent removes it. Forcing the files to disk costs one disk flush per
    file.

    Args:
        target: The folder to make. Its parent is made if need be. An empty folder may be there.

    Yields:
        A folder on the same filesystem, for the caller to fill.
    """
    final = Path(target)
    refuse_existing(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    with passing_folder(final, "staging") as folder:
        staging = folder / "dataset"
        staging.mkdir()
        yield staging
        sync_tree(staging)
        put_in_place(staging, final)


def note_made(folder: Path, dataset: Path, work: str) -> None:
    """Note in a hidden folder what is about to get its place.

    It is not synced to disk: if a power cut takes it, the dataset is there or not all the same.
    Cost: a stat for each file.

    Args:
        folder: The hidden folder.
        dataset: What is about to get its place.
        work: What was done; equal for two commands only if each would be content with the other's
            result.
    """
    fresh = folder / f".{MADE}.new"
    fresh.write_text(json.dumps(_described(dataset, work)))
    os.replace(fresh, folder / MADE)


def is_made(folder: Path, target: Path, work: str) -> bool:
    """Whether this very work was done, and its result is at ``target`` and is as it was.

    Cost: where there is no note, one look; else a stat for each file.
    """
    with suppress(OSError, ValueError, RecursionError):
        noted = json.loads((folder / MADE).read_bytes())
        return bool(noted == _described(target, work))
    return False


def forget_made(folder: Path) -> None:
    """Remove a note, if there is one."""
    (folder / MADE).unlink(missing_ok=True)


def _described(dataset: Path, work: str) -> dict[str, Any]:
    files = {}
    for parent, _, names in os.walk(dataset):
        for name in names:
            status = os.stat(os.path.join(parent, name), follow_symlinks=False)
            place = os.path.relpath(os.path.join(parent, name), dataset)
            files[place] = [status.st_ino, status.st_size, status.st_mtime_ns]
    return {"work": work, "files": files}
