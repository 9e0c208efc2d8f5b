"""What a pulled folder was when it was pulled: a file in it that says so, and what differs since.

``.demoreel/pulled.json`` names the repository, the commit, and every file with its size, check sum
and time. It is hidden, and never published.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demoreel.errors import TargetExistsError
from demoreel.layouts.lance_history import KEPT
from demoreel.storage.atomic import sync_path
from demoreel.storage.hub_calls import HubFile, content_digest
from demoreel.storage.writer_lock import HIDDEN

_RECORD = f"{HIDDEN}/pulled.json"
_OURS = (_RECORD, f"{HIDDEN}/lock")
_SHOWN = 5
_THREADS = 4


@dataclass(frozen=True, slots=True)
class PulledFile:
    """A file as it was pulled: the file, and its time of change in nanoseconds."""

    file: HubFile
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class PulledFolder:
    """What a folder was when it was pulled.

    Attributes:
        repo_id: The repository.
        commit: Its commit.
        episodes: Which episodes were pulled; None is all.
        files: Every file by name.
    """

    repo_id: str
    commit: str
    episodes: tuple[int, ...] | None
    files: Mapping[str, PulledFile]


def read_record(folder: Path) -> PulledFolder | None:
    """Return what a folder was when it was pulled; None if it was not, or does not say so."""
    try:
        noted = json.loads((folder / _RECORD).read_bytes())
        chosen = noted["episodes"]
        return PulledFolder(
            str(noted["repo_id"]),
            str(noted["commit"]),
            None if chosen is None else tuple(int(number) for number in chosen),
            {
                name: PulledFile(HubFile(name, int(size), sha256, git_sha1), int(mtime))
                for name, (size, sha256, git_sha1, mtime) in noted["files"].items()
            },
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_record(
    folder: Path,
    *,
    repo_id: str,
    commit: str,
    episodes: tuple[int, ...] | None,
    files: Mapping[str, HubFile] | None,
) -> None:
    """Note in a folder what it is, and force the note to disk.

    Args:
        folder: The dataset's folder.
        repo_id: Where it is from.
        commit: Of which commit.
        episodes: Which episodes it holds; None is all.
        files: Its files; None if they are not the repository's own, and are to be summed up here.
    """
    if files is None:
        names = list(_visible_files(folder))
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="demoreel-sums") as pool:
            files = dict(
                zip(names, pool.map(lambda name: _summed(folder, name), names), strict=True)
            )
    noted: dict[str, Any] = {
        "repo_id": repo_id,
        "commit": commit,
        "episodes": episodes,
        "files": {
            name: [f.size, f.sha256, f.git_sha1, (folder / name).stat().st_mtime_ns]
            for name, f in files.items()
        },
    }
    record = folder / _RECORD
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps(noted))
    sync_path(record)


def refuse_changed(folder: Path, record: PulledFolder) -> None:
    """Refuse to bring a folder up to date in which something was changed.

    Cost: a stat for each file; those whose time is another are read.

    Raises:
        TargetExistsError: Something was; the error says what.
    """
    here = set(_visible_files(folder))
    known = record.files
    changed = [name for name in known if name in here and not _is_as_pulled(folder, known[name])]
    difference = {
        "changed": changed,
        "missing": sorted(known.keys() - here),
        "added": sorted(here - known.keys()),
    }
    if any(difference.values()):
        raise TargetExistsError(
            f"The folder was pulled from {record.repo_id!r} and has been changed since.",
            hint="pull to another folder, or pass overwrite (--overwrite) to lose the changes",
            path=folder,
            **{what: _listed(names) for what, names in difference.items() if names},
        )


def as_if_pulled(folder: Path, repo_id: str, files: Mapping[str, HubFile]) -> PulledFolder | None:
    """Return a folder as if it had been pulled, if every file in it is of a commit.

    It was pushed from here, perhaps: bringing it up to date then loses nothing.

    Cost: reads the files, unless one has a name or a size that the commit does not have.

    Args:
        folder: The dataset's folder.
        repo_id: The repository.
        files: The commit's files.
    """
    here = list(_visible_files(folder))
    sizes = {name: (folder / name).stat().st_size for name in here}
    if any(name not in files or sizes[name] != files[name].size for name in here):
        return None
    if not all(files[name].is_content_of(folder / name) for name in here):
        return None
    found = {n: PulledFile(files[n], (folder / n).stat().st_mtime_ns) for n in here}
    return PulledFolder(repo_id, "", None, found)


def _is_as_pulled(folder: Path, pulled: PulledFile) -> bool:
    place = folder / pulled.file.path
    status = place.stat()
    if status.st_size != pulled.file.size:
        return False
    return status.st_mtime_ns == pulled.mtime_ns or pulled.file.is_content_of(place)


def _visible_files(folder: Path) -> Iterator[str]:
    """Yield the names of files that belong to a dataset: no hidden ones, but older versions'.

    What a recording has left to be finished belongs to it, too.
    """
    for parent, folders, names in os.walk(folder):
        top = Path(parent) == folder
        folders[:] = [n for n in folders if not n.startswith(".") or (top and n in (KEPT, HIDDEN))]
        for name in names:
            path = (Path(parent) / name).relative_to(folder).as_posix()
            if not name.startswith(".") and path not in _OURS:
                yield path


def _summed(folder: Path, name: str) -> HubFile:
    place = folder / name
    return HubFile(name, place.stat().st_size, sha256=content_digest(place, sha256=True))


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
