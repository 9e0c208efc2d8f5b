"""Symbolic links in a dataset: none may lead what is copied, published or written out of it.

A dataset may come from a stranger, and a link in it may name any file of this user. Reading through
such a link shows users their own files and is allowed; a copy of it could be published later, and a
write through it would change what is not the dataset's. Everything that copies, publishes or writes
therefore calls ``refuse_links_out`` first.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from demoreel.errors import ArgumentError
from demoreel.storage.commit.writer_lock import HIDDEN
from demoreel.storage.local import open_regular
from demoreel.storage.names import OLD_METADATA

_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # how the Hub's cache names files: by their sums
_STAGING = re.compile(r"staging-[0-9a-f]{12}")
_SNAPSHOTS = "snapshots"


def refuse_links_out(root: Path) -> None:
    """Refuse a dataset with a link that leads out of it, in any of its folders.

    Cost: lists every folder; no stat for files that are not links.

    Args:
        root: The dataset's folder, which may be reached through links itself.
    """
    for path, target in links_out(root):
        raise ArgumentError(
            "A link in the dataset leads out of it, so nothing is copied, published or written.",
            hint="put the file itself in the link's place, or copy the dataset with cp -rL",
            path=path,
            leads_to=target,
        )


def links_out(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield every link that leads out of a dataset, and where it leads, in the order of names."""
    waiting = [Path(root)]
    while waiting:
        folder = waiting.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue  # gone, or not readable: then nothing is copied of it either
        for entry in entries:
            if folder == root and _is_foreign(entry.name):
                continue
            if entry.is_symlink():
                target = leads_out(root, Path(entry.path))
                if target is not None:
                    yield Path(entry.path), target
            elif entry.is_dir(follow_symlinks=False) and not _is_staging(folder, entry.name):
                waiting.append(Path(entry.path))


def leads_out(root: Path, path: Path) -> Path | None:
    """Return where a path of a dataset leads if that is not in the dataset; None if it is.

    Snapshots in the Hub's cache are links to blobs of the same repository, which belong to them.
    Hidden folders beside ``meta/`` do not belong to a dataset: ``.git/config`` may hold a token.
    """
    home, real = Path(os.path.realpath(root)), Path(os.path.realpath(path))
    if real.is_relative_to(home):
        first = real.relative_to(home).parts[:1]
        own = Path(os.path.abspath(path)).relative_to(os.path.abspath(root)).parts[:1]
        is_hidden = bool(first) and first[0].startswith(".") and first != own
        return real if is_hidden and first[0] != OLD_METADATA else None
    snapshots = [place.parent for place in (home, *home.parents) if place.parent.name == _SNAPSHOTS]
    is_blob = any(real.parent == folder.parent / "blobs" for folder in snapshots)
    return None if is_blob and _BLOB.fullmatch(real.name) else real


def copy_inside(root: Path, path: Path, target: Path) -> None:
    """Copy a file of a dataset; a link that came to lead out of it since is refused."""
    handle = open_regular(path)
    with os.fdopen(handle, "rb") as source:
        # After opening: a file that is exchanged for a link between the two calls is noticed.
        real = os.path.realpath(path)
        is_same = os.path.samestat(os.fstat(handle), os.stat(real, follow_symlinks=False))
        if not is_same or leads_out(root, path) is not None:
            raise ArgumentError(
                "A file of the dataset was exchanged for a link out of it while it was copied.",
                hint="copy the dataset to a folder that only you can write to, and try again",
                path=path,
                leads_to=real,
            )
        with open(target, "wb") as copy:
            shutil.copyfileobj(source, copy)


def _is_foreign(name: str) -> bool:
    """Whether a top-level entry is no part of a dataset: ``.git``, ``.cache`` and the like."""
    return name.startswith(".") and name not in (OLD_METADATA, HIDDEN)


def _is_staging(folder: Path, name: str) -> bool:
    """Whether this is a transaction's folder: its links to tables are demoreel's own."""
    return folder.name == HIDDEN and _STAGING.fullmatch(name) is not None
