"""One commit of many files: written aside, recorded, then put in place.

A change to a dataset touches many files, and only one file can be replaced as one step. So:

1. The new files are written into a staging folder inside the dataset and synced to disk.
2. A record of what goes where, and of what is to be deleted, is synced to disk and renamed to
   ``.demoreel/journal.json``. **This rename is the commit**: before it nothing has happened,
   after it everything will.
3. The steps are taken in their order, the folders they touched are synced to disk, and the record
   is removed (``put_in_place``, ``settle``).

The next writer after a crash, and ``demoreel finish``, take the steps of a record that they find
(``roll_forward``); those that were taken already are passed over. Readers take none
(``consistent.py``). Staging folders without a record are rubbish.

A writer that lives, and whose steps fail, undoes them (``roll_back``): files that are replaced or
deleted keep a second name in the staging folder until all is settled. Until the record is gone,
either way stays open: each state on the way back can be rolled forward, too.

How this was tested: ``tests/layouts/test_kill.py`` kills writers with SIGKILL at random instants.
``tests/support/power_cut`` follows every fsync, rename, link and unlink of a commit, and
rebuilds what a disk may hold if the power fails after each of them: once with everything dropped
that was not synced to disk, once with folder entries surviving in their order and empty files
behind them, as journaling filesystems have it. Each of those states opens with the commit wholly
there or wholly absent (``tests/storage/test_journal.py``, ``tests/layouts/test_v3_appender.py``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from demoreel.errors import DatasetNotFoundError, MetadataError, UnsafePathError
from demoreel.storage.commit.files import sync_path
from demoreel.storage.commit.writer_lock import HIDDEN
from demoreel.storage.json_files import read_json

_RECORD = f"{HIDDEN}/journal.json"
_STAGING = re.compile(r"staging-[0-9a-f]{12}")
_EDGE = 1 << 16  # bytes at either end of a file that its check sum covers


@dataclass(frozen=True, slots=True)
class Step:
    """A file to be put in place, or (without ``staged``) one to be deleted.

    Attributes:
        final: Path below the dataset's folder.
        staged: Name in the staging folder.
        size: Bytes.
        check: Check sum of the first and the last 64 KiB.
        replaces: Whether there was a file in its place, which is lost when the step is taken.
    """

    final: str
    staged: str | None = None
    size: int = 0
    check: int = 0
    replaces: bool = False


def is_pending(root: Path) -> bool:
    """Whether there is a commit that is recorded and not (or not wholly) in place. One stat."""
    return os.path.lexists(record_of(root))


def record_of(root: Path) -> Path:
    """Return where the record of a commit is while there is one."""
    return root / _RECORD


@contextmanager
def transaction(root: Path) -> Iterator[Transaction]:
    """Yield a transaction; whatever was not recorded when the block ends is removed again."""
    made = Transaction(root)
    try:
        yield made
    finally:
        if not made.recorded:
            shutil.rmtree(made.folder, ignore_errors=True)


class Transaction:
    """Files that will come into place together, in the order in which they were announced.

    The caller must hold the dataset's ``WriterLock``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / HIDDEN / f"staging-{uuid.uuid4().hex[:12]}"
        self.folder.mkdir()
        self.recorded = False
        self._steps: list[Step] = []
        self._forced: dict[str, Future[None]] = {}  # by staged name
        self._described: set[int] = set()  # places in the steps
        self._grown: set[Path] = set()  # folders that got a new folder

    def new(self, final: str) -> Path:
        """Announce a new or changed file; write its content to the path that is returned."""
        staged = f"{len(self._steps):04d}{PurePosixPath(final).suffix}"
        self._steps.append(Step(final, staged))
        return self.folder / staged

    def take(self, source: Path, final: str) -> None:
        """Announce a file that is there already; ``source`` itself stays as it is.

        Costs nothing where the disk has hard links, and a copy elsewhere. Forcing it to disk begins
        at once, beside what the caller does next.
        """
        self.fill(self.new(final), source)

    def fill(self, staged: Path, source: Path) -> None:
        """Give a file that was announced with ``new`` the content of another; see ``take``."""
        try:
            os.link(source, staged)
        except OSError:
            shutil.copyfile(source, staged)
        self._force([staged])

    def begin_forcing(self) -> None:
        """Have what was written so far synced to disk, beside what the caller does next.

        It must be whole; what was only announced is passed over.
        """
        self._force(path for path in self._staged() if path.exists())
        self._describe()

    def force(self) -> None:
        """Sync all that was written so far to disk, so that ``record`` has little left to do.

        Raises:
            OSError: The disk is full or not writable; nothing has happened.
        """
        self._force(self._staged())
        self._wait_until_forced()

    def _staged(self) -> list[Path]:
        return [self.folder / step.staged for step in self._steps if step.staged]

    def _force(self, files: Iterable[Path]) -> None:
        for path in files:
            if path.name not in self._forced:
                self._forced[path.name] = _disk.submit(sync_path, path)

    def _wait_until_forced(self) -> None:
        for done in self._forced.values():
            done.result()

    def delete(self, final: str) -> None:
        """Announce that a file goes away."""
        self._steps.append(Step(final))

    def record(self) -> None:
        """Force everything to disk and commit. When this returns, the change will happen.

        Costs a disk flush per file, at once for all of them and the record, and one for its name.

        Raises:
            OSError: The disk is full or fails. Nothing has happened, unless ``is_pending``: then
                the record is there, and could not be removed again.
        """
        self._force(self._staged())
        self._describe()
        fresh = self.folder / "journal.json"
        with open(fresh, "xb") as file:
            file.write(_to_json(self.folder.name, self._steps))
        self._force([fresh, self.folder])  # the folder when all names are in it
        self._wait_until_forced()
        record = self.root / _RECORD
        self.recorded = True  # from here on its files may be needed, whatever fails
        try:
            os.rename(fresh, record)
            sync_path(record.parent)
        except BaseException:
            self.recorded = is_pending(self.root)
            if self.recorded:
                roll_back(self.root)
            raise

    def put_in_place(self) -> None:
        """Take the steps that were just recorded; everyone sees the change when this returns.

        The record stays until ``settle``: should the power fail before, they are taken again.

        Raises:
            OSError: A step could not be taken; the record is still there.
        """
        for step in self._steps:
            _take(self.root, self.folder, step)

    def settle(self, durable: set[Path]) -> None:
        """Force the steps that were taken to disk and remove the record.

        Args:
            durable: Folders that are on disk for certain, up to the dataset's, because they were
                forced there in this process: only their own entries are forced again. Grows.

        Raises:
            OSError: The disk fails; the record is still there.
        """
        folders = {(self.root / step.final).parent for step in self._steps}
        above = {p for f in folders - durable for p in f.parents if p.is_relative_to(self.root)}
        # A folder of which a file was deleted may be gone by now; that is in the folder above it.
        sync_all(sorted(folders | above | self._grown), missing_ok=True)
        durable |= folders
        (self.root / _RECORD).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)
            self._grown.add(folder.parent)

    def _describe(self) -> None:
        """Find out all that the record says of the files that are being synced to disk."""
        for place, step in enumerate(self._steps):
            ready = step.staged is None or step.staged in self._forced
            if ready and place not in self._described:
                self._described.add(place)
                self._make((self.root / step.final).parent)
                if step.staged is not None:
                    self._steps[place] = self._with_check(step, self.folder / step.staged)
                # A second name for the old file, until all is settled. It lets the step be undone;
                # and a step that frees a file would take as long as all the others.
                with suppress(OSError):
                    os.link(self.root / step.final, _kept(self.folder, place, step))

    def _with_check(self, step: Step, staged: Path) -> Step:
        found = _check_sum(staged)
        assert found is not None, f"{step.final} was announced and not written"
        return Step(step.final, step.staged, *found, os.path.lexists(self.root / step.final))


def roll_forward(root: Path) -> bool:
    """Take the recorded steps, if there is a record; return whether there was one.

    The caller must hold the dataset's ``WriterLock``. May be repeated after any failure.

    Raises:
        MetadataError: The record is damaged, or a file that it names is not the one it means.
        OSError: The disk is full, or not writable.
    """
    found = _read(root)
    if found is None:
        return False
    folder, steps = found
    todo = [step for step in steps if not _is_done(root, folder, step)]
    for step in todo:
        _take(root, folder, step)
    sync_all(sorted(_touched(root, steps)))
    os.unlink(root / _RECORD)
    shutil.rmtree(folder, ignore_errors=True)
    return True


def carry_out(root: Path) -> None:
    """Take the recorded steps, or undo them if one cannot be taken.

    Raises:
        OSError: The disk is full or fails. Nothing has happened, unless ``is_pending``: then the
            steps could not be undone either, and the next writer takes them.
    """
    try:
        roll_forward(root)
    except BaseException:
        with suppress(OSError, MetadataError):
            roll_back(root)
        raise


def roll_back(root: Path) -> bool:
    """Undo a commit that could not be put in place. The caller must hold the ``WriterLock``.

    Returns:
        Whether it is undone. False if there is none, or if a file that was replaced or deleted has
        no second name (on a disk without links): then the record is still there, and can only be
        rolled forward. May be repeated after any failure.

    Raises:
        OSError: The disk fails. Unless ``is_pending``, all is undone nevertheless; only a power cut
            might bring the commit back, whole.
    """
    found = _read(root)
    if found is None:
        return False
    folder, steps = found
    taken = [_is_done(root, folder, step) for step in steps]
    for place, step in enumerate(steps):
        lost = step.replaces or step.staged is None
        if taken[place] and lost and not _kept(folder, place, step).exists():
            return False
    for place, step in reversed(list(enumerate(steps))):
        final, kept = root / step.final, _kept(folder, place, step)
        if step.staged is not None and taken[place]:
            # The staged name first, so that the step can still be taken again.
            (os.link if step.replaces else os.rename)(final, folder / step.staged)
        if kept.exists() and not (final.exists() and kept.samefile(final)):
            os.replace(kept, final)
    sync_all(sorted(_touched(root, steps)))
    os.unlink(root / _RECORD)
    sync_path(root / HIDDEN)
    shutil.rmtree(folder, ignore_errors=True)
    return True


def is_in_place(root: Path) -> bool:
    """Whether every step of the record has been taken, so that only the record is left over.

    Raises:
        MetadataError: The record is damaged, or a file that it names is not the one it means.
    """
    failed: object = None
    while True:
        found = _read(root)
        try:
            return found is None or all(_is_done(root, found[0], step) for step in found[1])
        except MetadataError as error:
            # A living writer may have taken the step, or made the next commit, since it was read.
            if failed == (found, error.where["file"]):
                raise
            failed = (found, error.where["file"])


def clear_staging(root: Path) -> None:
    """Remove what commits that never happened have left. Only for the holder of the lock.

    Raises:
        OSError: The disk fails; nothing is removed.
    """
    left = staging_folders(root)
    if left:
        sync_path(root / HIDDEN)  # a record of theirs that a power cut brings back would need them
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)


def staging_folders(root: Path) -> list[Path]:
    """Return the folders of commits that are being made, or never happened."""
    found = sorted((root / HIDDEN).glob("staging-*"))
    return [folder for folder in found if _STAGING.fullmatch(folder.name)]


def sync_all(paths: Iterable[Path], *, missing_ok: bool = False) -> None:
    """Force files and folders to disk; together, for that costs hardly more than one of them."""
    for done in [_disk.submit(sync_path, path) for path in paths]:
        with suppress(*([FileNotFoundError] if missing_ok else [])):
            done.result()


class _Disk:
    """Threads that wait for the disk. They stay: starting them again would take a millisecond."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[Path], None], path: Path) -> Future[None]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(8, thread_name_prefix="demoreel-sync")
        return self._pool.submit(work, path)

    def after_fork(self) -> None:
        self._pool = None  # a fork copies no threads


_disk = _Disk()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disk.after_fork)


def _take(root: Path, folder: Path, step: Step) -> None:
    final = root / step.final
    if step.staged is None:
        final.unlink(missing_ok=True)
        return
    try:
        os.replace(folder / step.staged, final)
    except FileNotFoundError:
        final.parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder / step.staged, final)


def _is_done(root: Path, folder: Path, step: Step) -> bool:
    """Whether the step was taken; the staged file is gone then, and the final one is it."""
    final = root / step.final
    if step.staged is None:
        return not os.path.lexists(final)
    staged = folder / step.staged
    waiting = staged.exists()
    if _check_sum(staged if waiting else final) == (step.size, step.check):
        return not waiting
    raise MetadataError(
        "A file of an unfinished commit is not as it was written.",
        hint=f"the disk lost something; deleting {_RECORD} gives up the last episode",
        dataset=root,
        file=step.final,
    )


def _kept(folder: Path, place: int, step: Step) -> Path:
    """Return the second name of the file that a step replaces or deletes."""
    return folder / f"{step.staged or f'{place:04d}'}.old"


def _touched(root: Path, steps: Iterable[Step]) -> set[Path]:
    """Return the folders whose entries changed, up to the dataset's: some may be new."""
    folders = set()
    for step in steps:
        folder = (root / step.final).parent
        while folder != root:
            if folder.is_dir():
                folders.add(folder)
            folder = folder.parent
    return folders | {root}


def _check_sum(path: Path) -> tuple[int, int] | None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return -1, 0  # a pipe would keep us for ever; no file that was recorded is one
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            check = zlib.crc32(file.read(_EDGE))
            if size > _EDGE:
                file.seek(max(_EDGE, size - _EDGE))
                check = zlib.crc32(file.read(_EDGE), check)
            return size, check
    except FileNotFoundError:
        return None


def _to_json(folder: str, steps: list[Step]) -> bytes:
    listed = [[s.final, s.staged, s.size, s.check, s.replaces] for s in steps]
    content = json.dumps({"staging": folder, "steps": listed})
    check = zlib.crc32(content.encode())
    return json.dumps({"format": 1, "check": check, "content": content}).encode()


def _read(root: Path) -> tuple[Path, list[Step]] | None:
    path = root / _RECORD
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise UnsafePathError(
                "The record of an unfinished commit cannot be used: it is no plain file.",
                hint="delete it: without it the dataset opens as it is",
                file=path,
            )
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        raw: Any = read_json(path)
        if raw["format"] != 1 or zlib.crc32(raw["content"].encode()) != raw["check"]:
            raise ValueError("it is of another format, or damaged")
        content = json.loads(raw["content"])
        steps = [Step(*entry) for entry in content["steps"]]
        if not _STAGING.fullmatch(content["staging"]):
            raise ValueError("it names a strange folder")
        folder = root / HIDDEN / content["staging"]
        _refuse_link_out(root, folder)
        for step in steps:
            _refuse_outside(step)
            _refuse_link_out(root, (root / step.final).parent)
    except DatasetNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MetadataError(
            f"The record of an unfinished commit cannot be used ({str(error).splitlines()[0]}).",
            hint="is this dataset from someone you trust? Without the file it opens as it is",
            file=path,
        ) from error
    return folder, steps


def _refuse_link_out(root: Path, folder: Path) -> None:
    """Refuse a folder of the dataset that is another's, through a link."""
    if not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(root)):
        raise ValueError(f"{folder.relative_to(root)} leads out of the dataset")


def _refuse_outside(step: Step) -> None:
    """A dataset may be untrusted, and its record with it."""
    final = PurePosixPath(step.final)
    if final.is_absolute() or ".." in final.parts or not final.parts or "\0" in step.final:
        raise ValueError(f"it names {step.final!r}, which is not in the dataset")
    if step.staged is not None and not re.fullmatch(r"\d{4,9}[.\w]*", step.staged):
        raise ValueError(f"it names {step.staged!r}, which is not in the staging folder")
