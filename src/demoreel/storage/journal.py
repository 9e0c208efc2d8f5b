"""One commit of many files: written aside, recorded, then put in place.

A change to a dataset touches many files, and only one file can be replaced as one step. So:

1. The new files are written into a staging folder inside the dataset and forced to disk.
2. A record of what goes where, and of what is to be deleted, is forced to disk and renamed to
   ``.demoreel/journal.json``. **This rename is the commit**: before it nothing has happened,
   after it everything will.
3. The steps are taken in their order, the folders they touched are forced to disk, and the record
   is removed (``put_in_place``, ``settle``).

Whoever comes after a crash and finds a record takes its steps (``roll_forward``); those that were
taken already are passed over. Staging folders without a record are rubbish.

How this was tested: ``tests/layouts/test_kill.py`` kills writers with SIGKILL at random instants.
``demoreel.testing.power_cut`` follows every fsync, rename, link and unlink of a commit, and
rebuilds what a disk may hold if the power fails after each of them: once with everything dropped
that was not forced to disk, once with folder entries surviving in their order and empty files
behind them, as journaling filesystems have it. Each of those states opens with the commit wholly
there or wholly absent (``tests/storage/test_journal.py``, ``tests/layouts/test_v3_appender.py``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from demoreel.errors import MetadataError
from demoreel.storage.atomic import sync_path
from demoreel.storage.local import refuse_special
from demoreel.storage.writer_lock import HIDDEN

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
    return os.path.lexists(root / _RECORD)


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
        """Have what was written so far forced to disk, beside what the caller does next.

        It must be whole; what was only announced is passed over.
        """
        self._force(path for path in self._staged() if path.exists())
        self._describe()

    def force(self) -> None:
        """Force all that was written so far to disk, so that ``record`` has little left to do.

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
            OSError: The disk is full or not writable; nothing has happened.
        """
        self._force(self._staged())
        self._describe()
        fresh = self.folder / "journal.json"
        with open(fresh, "xb") as file:
            file.write(_to_json(self.folder.name, self._steps))
        self._force([fresh, self.folder])  # the folder when all names are in it
        self._wait_until_forced()
        record = self.root / _RECORD
        os.rename(fresh, record)
        try:
            sync_path(record.parent)
        except BaseException:
            os.unlink(record)
            raise
        self.recorded = True

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
        sync_all(sorted(folders | above | self._grown))
        durable |= folders
        os.unlink(self.root / _RECORD)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)
            self._grown.add(folder.parent)

    def _describe(self) -> None:
        """Find out all that the record says of the files that are being forced to disk."""
        for place, step in enumerate(self._steps):
            ready = step.staged is None or step.staged in self._forced
            if ready and place not in self._described:
                self._described.add(place)
                self._make((self.root / step.final).parent)
                if step.staged is not None:
                    self._steps[place] = self._with_check(step, self.folder / step.staged)

    def _with_check(self, step: Step, staged: Path) -> Step:
        found = _check_sum(staged)
        assert found is not None, f"{step.final} was announced and not written"
        final = self.root / step.final
        replaces = os.path.lexists(final)
        if replaces:
            # A second name for the old file, until all is settled: a step that frees a file takes
            # as long as all the others.
            with suppress(OSError):
                os.link(final, staged.with_name(f"{staged.name}.old"))
        return Step(step.final, step.staged, *found, replaces)


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


def roll_back(root: Path) -> bool:
    """Undo a commit that could not be put in place, if nothing was replaced or deleted yet.

    Returns:
        Whether that was possible. If not, the record is still there, and will be rolled forward.

    Raises:
        OSError: That failed too; the record is still there.
    """
    found = _read(root)
    if found is None:
        return False
    folder, steps = found
    taken = [step for step in steps if _is_done(root, folder, step)]
    if any(step.staged is None or step.replaces for step in taken):
        return False
    for step in reversed(taken):
        assert step.staged is not None
        os.rename(root / step.final, folder / step.staged)
    os.unlink(root / _RECORD)
    sync_path(root / HIDDEN)
    shutil.rmtree(folder, ignore_errors=True)
    return True


def is_in_place(root: Path) -> bool:
    """Whether every step of the record has been taken, so that only the record is left over."""
    found = _read(root)
    return found is None or all(_is_done(root, found[0], step) for step in found[1])


def clear_staging(root: Path) -> None:
    """Remove what commits that never happened have left. Only for the holder of the lock."""
    for folder in (root / HIDDEN).glob("staging-*"):
        if _STAGING.fullmatch(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def sync_all(paths: Iterable[Path]) -> None:
    """Force files and folders to disk; together, for that costs hardly more than one of them."""
    for done in [_disk.submit(sync_path, path) for path in paths]:
        done.result()


class _Disk:
    """Threads that wait for the disk. They stay: starting them anew would take a millisecond."""

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
    """Whether the step was taken; the staged file is gone then, and the final one is it.

    Raises:
        MetadataError: It was not, and cannot be: the bytes are not those that were recorded.
    """
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
        refuse_special(path)
        raw: Any = json.loads(path.read_bytes())
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
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MetadataError(
            f"The record of an unfinished commit cannot be used ({error}).",
            hint="is this dataset from someone you trust? Without the file it opens as it is",
            file=path,
        ) from error
    return folder, steps


def _refuse_link_out(root: Path, folder: Path) -> None:
    """Refuse a folder of the dataset that is another's, through a link."""
    if not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(root)):
        raise ValueError(f"{folder.relative_to(root)} leads out of the dataset")


def _refuse_outside(step: Step) -> None:
    """A dataset may come from a stranger, and its record with it."""
    final = PurePosixPath(step.final)
    if final.is_absolute() or ".." in final.parts or not final.parts or "\0" in step.final:
        raise ValueError(f"it names {step.final!r}, which is not in the dataset")
    if step.staged is not None and not re.fullmatch(r"\d{4,9}[.\w]*", step.staged):
        raise ValueError(f"it names {step.staged!r}, which is not in the staging folder")
