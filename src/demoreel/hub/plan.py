"""Plans a push: compares the dataset's folder with the repository.

Published is what readers need: ``meta/``, ``data/``, ``videos/``, the newest version of each Lance
table, and a licence that is beside them. Everything hidden stays on the machine: ``.demoreel``
with its journals, locks and staging folders, ``.versions``, caches. So do older versions of Lance
tables, whose metadata are in ``.versions``: without these they would be read with the wrong ones.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from demoreel.errors import ArgumentError
from demoreel.hub.card import SHEET
from demoreel.hub.records import CheckSums
from demoreel.layouts.lance.calls import open_to_write
from demoreel.layouts.lance.write import writing
from demoreel.storage.folder import refuse_links_out
from demoreel.storage.hub_calls import HubFile

FOLDERS = ("meta", "data", "videos")
CARD = "README.md"

_LICENSES = ("LICENSE*", "NOTICE*", "CITATION.cff")
_HINT = "_versions/latest_version_hint.json"
_EXTERNAL = 3  # kind of a blob that is a file elsewhere


@dataclass(frozen=True, slots=True)
class FileToPush:
    """A file to publish.

    Attributes:
        name: Its path in the repository.
        content: Where it is, or its bytes if it is made for the push.
        size: Bytes.
    """

    name: str
    content: Path | bytes
    size: int


def is_of_a_dataset(name: str) -> bool:
    """Whether a file of a repository is a dataset's, and may be deleted with it."""
    first, *rest = PurePosixPath(name).parts
    return bool(rest) and (first in FOLDERS or first.endswith(".lance"))


def is_content(name: str) -> bool:
    """Whether a file of a dataset holds rows or frames, and not metadata."""
    parts = PurePosixPath(name).parts
    if parts[0].endswith(".lance"):
        return parts[1:2] == ("data",) and parts[0] != "meta.lance"
    return parts[0] in ("data", "videos")


def dataset_files(root: Path, layout: str) -> list[FileToPush]:
    """Return the files of a dataset that are to be published, in the order of their names.

    Cost: a stat for each file; of Lance tables, their newest manifest. No content is read.
    """
    refuse_links_out(root)
    names = list(_below(root, "meta"))
    if layout.startswith("lance"):
        for table in sorted(root.glob("*.lance")):
            if table.is_dir() and not table.name.startswith("."):
                names += _newest_version(root, table)
    else:
        names += [*_below(root, "data"), *_below(root, "videos")]
    names += [
        entry.name
        for entry in os.scandir(root)
        if any(fnmatch(entry.name, pattern) for pattern in _LICENSES) and entry.is_file()
    ]
    return [_checked(root, name) for name in sorted(set(names))]


def _below(root: Path, folder: str) -> Iterator[str]:
    """Yield the files below a folder that are not hidden, nor in a hidden folder."""
    for parent, folders, files in os.walk(root / folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if not name.startswith("."):
                yield (Path(parent) / name).relative_to(root).as_posix()


def _newest_version(root: Path, table: Path) -> Iterator[str]:
    """Yield the files that the newest version of a Lance table consists of."""
    with writing(table):
        opened = open_to_write(table)
        found = opened.tracked_files(min_version=opened.version).read_all().to_pylist()
        linked = _linked_blob(opened)
    if linked is not None:
        raise _lies_elsewhere(table, linked)
    for entry in found:
        if os.path.realpath(entry["base_uri"]) != os.path.realpath(table):
            raise _lies_elsewhere(table, entry["base_uri"])
        name = str(entry["path"])
        yield f"{table.name}/{name}"
        if entry["type"] == "data file":  # blobs are in a folder beside it
            yield from _below(root, f"{table.name}/{name.removesuffix('.lance')}")
    if (table / _HINT).is_file():
        yield f"{table.name}/{_HINT}"


def _linked_blob(opened: Any) -> str | None:
    """Return a file that a table names instead of holding it: it would not be published."""
    names = [field.name for field in opened.schema if "lance.blob" in str(field.type)]
    if not names:
        return None
    for batch in opened.scanner(columns=names).to_batches():
        for name in names:
            for blob in batch.column(name).to_pylist():
                if blob is not None and blob.get("kind") == _EXTERNAL:
                    return str(blob["blob_uri"])
    return None


def _lies_elsewhere(table: Path, place: object) -> ArgumentError:
    return ArgumentError(
        "Bytes of this dataset are elsewhere on this machine, and would not be published.",
        hint="convert it again without --link, then push the result",
        table=table,
        elsewhere=place,
    )


def _checked(root: Path, name: str) -> FileToPush:
    path = root / name
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ArgumentError("Something in the dataset is no file.", path=path)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ArgumentError(
            "A file's name is not UTF-8, which the Hub requires.", path=repr(name)
        ) from None
    return FileToPush(name, path, status.st_size)


@dataclass(frozen=True, slots=True)
class PushPlan:
    """What a push does to a repository.

    Attributes:
        send: Files to send: new ones, and those with other bytes.
        delete: Files of the dataset that it no longer has.
        same: Files that are there already, with the same bytes.
    """

    send: tuple[FileToPush, ...]
    delete: tuple[str, ...]
    same: frozenset[str]

    @property
    def bytes(self) -> int:
        """How many bytes are to be sent."""
        return sum(file.size for file in self.send)

    @property
    def is_empty(self) -> bool:
        """Whether the repository holds all this already."""
        return not self.send and not self.delete


def make_plan(
    local: Iterable[FileToPush],
    remote: Mapping[str, HubFile],
    sums: CheckSums,
    *,
    chosen: Callable[[str], bool] = lambda name: True,
) -> PushPlan:
    """Compare a dataset's files with a repository's.

    Cost: files of the same size are read, unless their check sums are remembered.

    Args:
        local: The dataset's files.
        remote: The repository's.
        sums: Check sums of the local files.
        chosen: Which files the push is about: others are neither sent nor deleted.
    """
    here = {file.name: file for file in local if chosen(file.name)}
    alike = [n for n, file in here.items() if n in remote and remote[n].size == file.size]
    found = sums.of(
        (name, here[name].content, "sha256" if remote[name].sha256 else "git") for name in alike
    )
    same = {name for name, value in found.items() if value == remote[name].digest}
    send = [file for name, file in sorted(here.items()) if name not in same]
    if all(file.name == SHEET for file in send) and SHEET in remote:
        # The same frames may become another JPEG on another machine; that is no change.
        same |= {file.name for file in send}
        send = []
    gone = [n for n in remote if is_of_a_dataset(n) and n not in here and chosen(n)]
    return PushPlan(tuple(send), tuple(sorted(gone)), frozenset(same))


def chooser(*, videos: bool, patterns: Iterable[str] | None = None) -> Callable[[str], bool]:
    """Return which files a push is about.

    Args:
        videos: Whether ``videos/`` is.
        patterns: Only files that match one of these, as in ``fnmatch``; the card always does.
    """
    listed = [patterns] if isinstance(patterns, str) else patterns
    wanted = None if listed is None else [f"{p}*" if p.endswith("/") else p for p in listed]

    def chosen(name: str) -> bool:
        if not videos and name.startswith("videos/"):
            return False
        return wanted is None or name == CARD or any(fnmatch(name, glob) for glob in wanted)

    return chosen


@dataclass(frozen=True, slots=True)
class PushReport:
    """What a push has done, or would do.

    Attributes:
        repo_id: The repository.
        branch: The branch.
        url: The address of its page.
        layout: The dataset's layout.
        episodes: Its episodes.
        frames: Its frames.
        commit: The commit that holds it; before a dry run's, the one that is there.
        tag: The tag that names the commit; None if none was wanted.
        tag_moved: Whether it pointed elsewhere before, or nowhere.
        sent: Bytes of each file that was not there, or not with these bytes.
        deleted: Files of the dataset that it no longer has.
        unchanged: How many files were there already.
        created: Whether the repository was made.
        dry_run: Whether all this would be done, and was not.
        notes: What else is worth knowing.
    """

    repo_id: str
    branch: str
    url: str
    layout: str
    episodes: int
    frames: int
    commit: str | None
    tag: str | None
    tag_moved: bool
    sent: Mapping[str, int]
    deleted: tuple[str, ...]
    unchanged: int
    created: bool
    dry_run: bool
    notes: tuple[str, ...] = ()

    @property
    def bytes_sent(self) -> int:
        """Bytes of the files that were sent."""
        return sum(self.sent.values())

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            **asdict(self),
            "sent": dict(self.sent),
            "bytes_sent": self.bytes_sent,
            "deleted": list(self.deleted),
            "notes": list(self.notes),
        }
