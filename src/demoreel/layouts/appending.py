"""Appending episodes to a dataset: the contract that every layout's appender keeps.

``append`` is a commit. When it returns, the episode survives whatever happens to the process or the
power, and is there when the dataset is opened next, by demoreel or lerobot. Until then nothing of
it is visible. There is one writer at a time; readers never wait.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from demoreel.errors import (
    ArgumentError,
    DatasetNotFoundError,
    DemoreelError,
    DiskError,
    DiskFullError,
    MetadataError,
)
from demoreel.layouts.pending import refuse_waiting
from demoreel.layouts.writing import EpisodeDraft, PathLike, Values, write_json
from demoreel.model import Feature, Info, Stats
from demoreel.storage.commit.files import reason_of, says_no_room
from demoreel.storage.commit.journal import clear_staging, is_pending, roll_forward
from demoreel.storage.commit.staging import staged
from demoreel.storage.commit.writer_lock import WriterLock
from demoreel.storage.folder import refuse_links_out

APPENDABLE = ("v3.0", "lance-video", "lance-native")
"""The layouts that episodes can be appended to."""


class Appender(Protocol):
    """What every layout's appender offers. ``append`` and ``compact`` may run in two threads."""

    @property
    def info(self) -> Info:
        """What the dataset is, with its totals so far."""
        ...

    @property
    def episodes(self) -> int:
        """Episodes that are committed."""
        ...

    @property
    def frames(self) -> int:
        """Frames of them all."""
        ...

    @property
    def tasks(self) -> Mapping[str, int]:
        """Every task and its index."""
        ...

    @property
    def stats(self) -> Stats | None:
        """Statistics of the whole dataset; None where it has none."""
        ...

    def default_columns(
        self, tasks: Sequence[str], *, timestamps: Values | None = None
    ) -> dict[str, np.ndarray]:
        """Return the columns (timestamp, index, ...) that the next ``append`` will add."""
        ...

    def check(self, draft: EpisodeDraft) -> None:
        """Raise what ``append`` would refuse the episode for. Changes nothing.

        Videos that are yet to come are not looked at.
        """
        ...

    def append(self, draft: EpisodeDraft, *, total_stats: Stats | None = None) -> int:
        """Commit an episode and return its index.

        Args:
            draft: The episode.
            total_stats: Statistics of the dataset with this episode; without them they are merged
                from those before and the episode's, where quantiles cannot be exact.

        Raises:
            ArgumentError: Something is missing, or of another shape or type than declared.
            UnknownKeyError: Something is given that is not declared.
            FrameMismatchError: A video has not as many frames as there are rows.
            VideoError: A video does not open.
            DiskFullError: There is no room. The dataset and the draft are as they were; append
                again when there is.
            DiskError: The disk fails otherwise; the message says what is saved. Appending the same
                draft again, when the cause is gone, saves it once.
        """
        ...

    def redeclare(self, features: Mapping[str, Feature]) -> None:
        """Commit more details of the features; their names, dtypes and shapes stay."""
        ...

    def replace_stats(
        self, stats: Stats, *, approximate: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Commit other statistics of the whole dataset.

        Args:
            stats: The statistics.
            approximate: Kinds that are not exactly those of the data, by feature; None if nothing
                is known of that.
        """
        ...

    def restate(self, **fields: Any) -> Info:
        """Commit other fields of ``info.json``, and return it.

        Args:
            **fields: Sizes of files, which hold from now on; any other is one that demoreel does
                not use. None takes such a one away.
        """
        ...

    def recover(self) -> None:
        """Settle or undo a commit that has failed before, if one has; the others do so, too.

        Raises:
            DiskError: The disk still fails; the message says what is saved.
        """
        ...

    def compact(self, *, finish: bool = False, aside: bool = False) -> bool:
        """Merge some small files; return whether there is more to do.

        One bounded step. Without ``finish`` only such merges are made as keep the total work within
        a few copies of every byte, however many episodes follow. With ``aside`` files are copied by
        a process of its own, as far as the layout can, so that a control loop here is not held up.
        """
        ...

    def close(self) -> None:
        """Let go of the dataset. May be called twice."""
        ...


def create_appender(root: PathLike, info: Info, *, layout: str = "v3.0") -> Appender:
    """Begin a dataset without episodes and return its appender.

    Args:
        root: The folder to make; an empty one may be there.
        info: What the dataset is to be; its totals are ignored.
        layout: How it is stored.

    Raises:
        TargetExistsError: There is something at ``root``.
        ArgumentError: ``info`` or ``layout`` is not one that can be appended to.
        DiskError: The disk is full or fails; there is nothing at ``root``.
    """
    if layout not in APPENDABLE:
        raise _cannot_append(layout)
    from demoreel.layouts.v3.appender import check_info

    check_info(info)
    extra = {name: value for name, value in info.extra.items() if name != "storage_format"}
    if layout == "lance-native":
        extra["storage_format"] = "lance"
    empty = replace(info, total_episodes=0, total_frames=0, total_tasks=0, splits={}, extra=extra)
    with no_room_is_an_error(Path(root)):
        with staged(root) as folder:
            write_json(folder / "meta" / "info.json", empty.to_json())
            _write_empty_tables(folder, empty, layout, name=Path(os.path.abspath(root)).name)
        try:
            return _appender_for(Path(root), empty)
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)  # made above, and not in use yet
            raise


def _write_empty_tables(folder: Path, info: Info, layout: str, *, name: str) -> None:
    """Write the tables of a Lance dataset without episodes; they say which layout it is."""
    try:
        if layout.startswith("lance"):
            from demoreel.layouts.lance.append import write_empty_tables

            write_empty_tables(folder, info, layout, name=name)
    except MetadataError as error:  # of the arguments, not of a file
        raise ArgumentError(error.what, hint=error.hint) from error


def open_appender(root: PathLike) -> Appender:
    """Open a dataset for appending, whatever program wrote it; finish what a dead writer had begun.

    Cost: reads the metadata.

    Raises:
        DatasetNotFoundError: There is no dataset.
        DatasetBusyError: Another process is appending to it.
        MetadataError: Its metadata are broken, or not such that episodes can follow.
        ArgumentError: Its layout is one that cannot be appended to.
        DiskError: The disk is full or fails; every saved episode is there.
    """
    from demoreel.layouts.meta import read_info

    info_path = require_dataset(Path(root))
    with no_room_is_an_error(Path(root)):
        info = read_info(info_path)
        return _appender_for(Path(root), info)


def require_dataset(root: Path) -> Path:
    """Return the file that describes a dataset; refuse to append to none."""
    info_path = root / "meta" / "info.json"
    if not info_path.is_file():
        raise DatasetNotFoundError(
            "There is no dataset to append to.",
            hint="begin one with demoreel.create",
            path=root,
        )
    return info_path


def _appender_for(root: Path, info: Info) -> Appender:
    from demoreel.layouts.detect import layout_and_table

    layout, table = layout_and_table(root, info)
    if layout not in APPENDABLE:
        raise _cannot_append(layout)
    if layout.startswith("lance"):
        from demoreel.layouts.lance.append import LanceAppender
        from demoreel.layouts.lance.schemas import schema_of

        return LanceAppender(root, schema_of(layout, table, info))
    from demoreel.layouts.v3.appender import V3Appender

    return V3Appender(root)


def _cannot_append(layout: str) -> ArgumentError:
    return ArgumentError(
        f"Episodes cannot be appended to a dataset in the layout {layout!r}.",
        hint=f"{', '.join(APPENDABLE)} can be appended to",
    )


@contextmanager
def only_writer(root: Path, doing: str) -> Iterator[None]:
    """Hold the right to change a dataset in place, as the last writer left it.

    Args:
        root: The dataset's folder.
        doing: What is refused while saved episodes wait to be encoded, e.g. ``edited``.
    """
    refuse_links_out(root)
    lock = WriterLock(root)
    try:
        lock.sign()
        roll_forward(root)
        clear_staging(root)
        refuse_waiting(root, doing)
        yield
    finally:
        lock.release(remove=True)


@contextmanager
def no_room_is_an_error(root: Path) -> Iterator[None]:
    """Turn the errors of a disk that is full or fails into one that says what is saved.

    Raises:
        DiskFullError: There is no room.
        DiskError: The disk fails otherwise.
    """
    try:
        yield
    except Exception as error:
        full = says_no_room(error)
        disk = isinstance(error, OSError) and not isinstance(error, DemoreelError)
        if isinstance(error, DiskError) or not (full or disk):
            raise
        raise disk_error(error, root) from error


def disk_error(error: Exception, root: Path, *, what: str = "") -> DiskError:
    """Return the error of a disk that is full or fails, and say what became of a commit.

    Args:
        error: What the system said.
        root: The dataset's folder.
        what: What was not done, and what is saved; without, that of a commit.
    """
    full, reason = says_no_room(error), reason_of(error)
    begin = "There is no room on the disk" if full else f"The disk fails ({reason})"
    hint = "free some space on the disk of this dataset" if full else "see what the disk needs"
    if what:
        whole = f"{begin}: {what}"
    elif is_pending(root):
        whole = (
            f"{begin}, and a commit that had begun could be neither completed nor undone. Doing it "
            "again saves it once; left so, the next writer of the dataset completes it."
        )
    else:
        whole = (
            f"{begin} for this, so nothing was written."
            if full
            else f"{begin}, so nothing was written."
        )
    return (DiskFullError if full else DiskError)(
        whole, hint=f"{hint}, then do it again", dataset=root
    )
