"""Appending to the lance-native layout; nearly all of it is shared, in ``lance_append.py``.

``meta.lance``, the copy of ``meta/`` for datasets that lie elsewhere, is brought up to date when
the appender is closed. It grows with the dataset: a copy of it with every episode would cost more
and more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from demoreel.layouts.lance_append import LanceAppender, LanceFormat
from demoreel.layouts.lance_native import writer
from demoreel.layouts.lance_native.reader import FRAMES, VIDEOS
from demoreel.layouts.lance_out import BYTES_COLUMN
from demoreel.model import Info
from demoreel.storage.journal import Transaction
from demoreel.storage.lance_versions import GrowingTable, hint_name, hint_of
from demoreel.storage.lance_write import commit_table, with_blobs

_COPY = "meta.lance"


def lance_native_appender(root: Path, info: Info) -> LanceAppender:
    """Open a lance-native dataset for appending.

    Args:
        root: The dataset's folder.
        info: What it is.

    Raises:
        DatasetBusyError: Another process is appending to it.
        MetadataError: No episode can follow.
    """
    form = LanceFormat(
        frames=FRAMES,
        videos=VIDEOS if info.video_keys else None,
        video_schema=writer.VIDEOS,
        rows_batch=writer.rows_batch,
        video_rows=writer.video_rows,
        copy=_COPY,
        meta_rows=writer.meta_rows,
    )
    return LanceAppender(root, form)


def renew_copy(root: Path, changes: Transaction, changed: Mapping[str, Path | None]) -> None:
    """Announce a version of ``meta.lance`` that holds ``meta/`` as it is about to be.

    Args:
        root: The dataset's folder.
        changes: What it comes into place with.
        changed: Files that change with it, relative to ``meta/``: where they lie now, or None for
            those that go.
    """
    if not (root / _COPY).is_dir():
        return
    rows = writer.meta_rows(root / "meta", changed=changed)
    stand_in = GrowingTable(root / _COPY).stand_in(changes.folder)
    stand_in.overwrite(rows)
    version = stand_in.move_into(changes, root)
    changes.new(hint_name(_COPY)).write_bytes(hint_of(version))


def write_empty_tables(folder: Path, info: Info) -> None:
    """Write the tables of a dataset without episodes.

    Args:
        folder: The dataset's folder.
        info: What it is to be.

    Raises:
        MetadataError: Two features would share a column.
        ArgumentError: A feature has a shape or dtype that no table can hold.
    """
    commit_table(folder / FRAMES, writer.rows_schema(info), ())
    if info.video_keys:
        videos = with_blobs(writer.VIDEOS, BYTES_COLUMN, ranges=True)
        commit_table(folder / VIDEOS, videos, ())
    commit_table(folder / _COPY, writer.META_SCHEMA, ())
