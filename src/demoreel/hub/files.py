"""Which files of a dataset's folder are published, and which of a repository's are a dataset's.

Published is what readers need: ``meta/``, ``data/``, ``videos/``, the newest version of each Lance
table, and a licence that lies beside them. Everything hidden stays on the machine: ``.demoreel``
with its journals, locks and staging folders, ``.versions``, caches. So do older versions of Lance
tables, whose metadata lie in ``.versions``: without these they would be read with the wrong ones.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from demoreel.errors import ArgumentError
from demoreel.storage.lance_calls import import_lance
from demoreel.storage.lance_write import writing

FOLDERS = ("meta", "data", "videos")
CARD = "README.md"

_LICENSES = ("LICENSE*", "NOTICE*", "CITATION.cff")
_HINT = "_versions/latest_version_hint.json"
_EXTERNAL = 3  # kind of a blob that is a file elsewhere


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to publish.

    Attributes:
        name: Its path in the repository.
        content: Where it lies, or its bytes if it is made for the push.
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
    """Whether a file of a dataset holds rows or pictures, and not what is said of them."""
    parts = PurePosixPath(name).parts
    if parts[0].endswith(".lance"):
        return parts[1] == "data" and parts[0] != "meta.lance"
    return parts[0] in ("data", "videos")


def dataset_files(root: Path, layout: str) -> list[LocalFile]:
    """Return the files of a dataset that are to be published, in the order of their names.

    Cost: a stat for each file; of Lance tables, their newest manifest. No content is read.

    Args:
        root: The dataset's folder.
        layout: Its layout.

    Raises:
        ArgumentError: A link leads out of the dataset, or something is no file.
        TableError: A Lance table does not open.
    """
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
        _refuse_link_out(root, Path(parent))
        for name in files:
            if not name.startswith("."):
                yield (Path(parent) / name).relative_to(root).as_posix()


def _newest_version(root: Path, table: Path) -> Iterator[str]:
    """Yield the files that the newest version of a Lance table consists of."""
    with writing(table):
        opened = import_lance().dataset(os.fspath(table))
        found = opened.tracked_files(min_version=opened.version).read_all().to_pylist()
        linked = _linked_blob(opened)
    if linked is not None:
        raise _lies_elsewhere(table, linked)
    for entry in found:
        if os.path.realpath(entry["base_uri"]) != os.path.realpath(table):
            raise _lies_elsewhere(table, entry["base_uri"])
        name = str(entry["path"])
        yield f"{table.name}/{name}"
        if entry["type"] == "data file":  # blobs lie in a folder beside it
            yield from _below(root, f"{table.name}/{name.removesuffix('.lance')}")
    if (table / _HINT).is_file():
        yield f"{table.name}/{_HINT}"


def _linked_blob(opened: Any) -> str | None:
    """Return a file that a table names instead of holding it: nobody else would find that."""
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
        "Bytes of this dataset lie elsewhere on this machine, and would not be published.",
        hint="convert it again without --link, then push the result",
        table=table,
        elsewhere=place,
    )


def _checked(root: Path, name: str) -> LocalFile:
    path = root / name
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ArgumentError("Something in the dataset is no file.", path=path)
    if path.is_symlink():
        _refuse_link_out(root, path)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ArgumentError(
            "A file's name is not UTF-8, which the Hub wants.", path=repr(name)
        ) from None
    return LocalFile(name, path, status.st_size)


def _refuse_link_out(root: Path, path: Path) -> None:
    """Refuse a link out of the dataset: a stranger's could lead to what is not to be published.

    Snapshots in the Hub's cache are links to the blobs beside them, and may be.
    """
    real, home = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    if real.is_relative_to(home):
        return
    if home.parent.name == "snapshots" and real.parent == home.parent.parent / "blobs":
        return
    raise ArgumentError(
        "A link in the dataset leads out of it.",
        hint="put what it leads to in its place, or copy the dataset with cp -rL",
        path=path,
        leads_to=real,
    )
