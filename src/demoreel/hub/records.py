"""Records of earlier pushes and pulls of a folder.

``.demoreel/pulled.json`` in a pulled folder names the repository, the commit, and every file with
its size, check sum and time. It is hidden, and never published.

The user's cache folder holds check sums of files that were pushed, so that a file is read once for
as long as it does not change; and for each folder and repository, the commit that the folder was
last pushed to, and what the dataset's files were then. All of it may be deleted: pushing then reads
the files again, and compares episodes to find out who changed what.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from demoreel.errors import DemoreelError, TargetExistsError
from demoreel.storage.commit.files import refuse_existing, sync_path, write_file
from demoreel.storage.commit.replace import finish_replacing, wait_for_replacing
from demoreel.storage.commit.writer_lock import HIDDEN
from demoreel.storage.hub_calls import HubFile, content_digest
from demoreel.storage.json_files import read_json
from demoreel.storage.local import refuse_special
from demoreel.storage.names import OLD_METADATA

Kind = Literal["sha256", "git"]
"""Which check sum: LFS names objects by their SHA-256, git by the SHA-1 of a blob."""

_RECORD = f"{HIDDEN}/pulled.json"
_OURS = (_RECORD, f"{HIDDEN}/lock")
_SHOWN = 5
_THREADS = 4
_JUST_NOW = 2 * 10**9  # ns: a file changed so lately may change again and keep its times


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
        refuse_special(folder / _RECORD)
        noted = read_json(folder / _RECORD)
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
    except (OSError, ValueError, TypeError, KeyError, AttributeError, DemoreelError):
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
    """Refuse to update a folder in which something was changed.

    Cost: a stat for each file; those whose time is another are read.
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


@dataclass(frozen=True, slots=True)
class PullTarget:
    """What is at a target before a pull.

    Attributes:
        is_there: Whether there is a dataset, which is to be replaced.
        record: What it was when it was pulled, if it was, and if its files may be of use.
        objection: Why it must not be replaced, unless it turns out that nothing is lost.
    """

    is_there: bool
    record: PulledFolder | None = None
    objection: TargetExistsError | None = None


def look_at_target(
    target: Path, repo_id: str, *, overwrite: bool, dry_run: bool = False
) -> PullTarget:
    """Return what is at a target.

    Args:
        target: The folder.
        repo_id: What is to be pulled to it.
        overwrite: Whether a dataset may be replaced, whatever it holds.
        dry_run: Only look: a replacement that was killed is not finished.
    """
    if not dry_run:
        finish_replacing(target)
    elif not target.exists():
        wait_for_replacing(target)
    if target.is_symlink() or not target.is_dir() or not any(target.iterdir()):
        refuse_existing(target)
        return PullTarget(is_there=False)
    record = read_record(target)
    if record is None and not (target / "meta" / "info.json").is_file():
        refuse_existing(target)
    if overwrite:
        return PullTarget(is_there=True)
    hint = "choose another folder, or pass overwrite (--overwrite) to replace the dataset"
    try:
        if record is None:
            refuse_existing(target, hint=hint)
        elif record.repo_id != repo_id:
            raise TargetExistsError(
                f"The folder was pulled from another repository, {record.repo_id!r}.",
                hint=hint,
                path=target,
            )
        else:
            refuse_changed(target, record)
    except TargetExistsError as objection:
        return PullTarget(is_there=True, objection=objection)
    return PullTarget(is_there=True, record=record)


def as_if_pulled(folder: Path, repo_id: str, files: Mapping[str, HubFile]) -> PulledFolder | None:
    """Return a folder as if it had been pulled, if every file in it is of a commit.

    It was pushed from here, perhaps: updating it then loses nothing.

    Cost: reads the files, unless one has a name or a size that the commit does not have.
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
        folders[:] = [
            n for n in folders if not n.startswith(".") or (top and n in (OLD_METADATA, HIDDEN))
        ]
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


def _home() -> Path:
    given = os.environ.get("DEMOREEL_CACHE")
    if given:
        return Path(given).expanduser() / "hub"
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "demoreel" / "hub"


@dataclass(frozen=True, slots=True)
class KnownCommit:
    """A commit that a folder was pushed to or pulled from.

    Attributes:
        commit: The commit.
        files: Check sums of the dataset's files and the card there, by name.
    """

    commit: str
    files: Mapping[str, str]


def remember(
    root: Path, endpoint: str, repo_id: str, branch: str, commit: str, files: Mapping[str, str]
) -> None:
    """Note what a folder was pushed to.

    A cache folder that cannot be written is passed over: pushing works without.

    Args:
        root: The dataset's folder.
        endpoint: The Hub.
        repo_id: The repository.
        branch: The branch.
        commit: The commit.
        files: Check sums of its files: SHA-256 of those in LFS, of others git's own.
    """
    path = _note_path(root, endpoint, repo_id, branch)
    _write(path, {"commit": commit, "files": dict(files)})


def last_known(root: Path, endpoint: str, repo_id: str, branch: str) -> KnownCommit | None:
    """Return what the folder was last pushed to or pulled from; None where nothing is known."""
    path = _note_path(root, endpoint, repo_id, branch)
    found = _read(path)
    commit, files = found.get("commit"), found.get("files")
    pushed = (
        KnownCommit(commit, files) if isinstance(commit, str) and isinstance(files, dict) else None
    )
    record = read_record(root)
    if record is None or record.repo_id != repo_id or record.episodes is not None:
        return pushed  # some episodes of a dataset are another dataset
    if pushed is not None and _changed(path) >= _changed(root / _RECORD):
        return pushed
    return KnownCommit(
        record.commit, {name: there.file.digest for name, there in record.files.items()}
    )


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class CheckSums:
    """Check sums of a dataset's files, remembered for as long as the files do not change."""

    def __init__(self, root: Path) -> None:
        self._path = _home() / f"sums-{_digest(os.path.realpath(root))}.json"
        self._known: dict[str, Any] = _read(self._path)
        self._fresh = False

    def of(self, wanted: Iterable[tuple[str, Path | bytes, Kind]]) -> dict[str, str]:
        """Return check sums by name, for (name, content, kind).

        Cost: reads each file that is not remembered, several at once.
        """
        listed = list(wanted)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="demoreel-sums") as pool:
            sums = pool.map(lambda entry: self._one(*entry), listed)
            found = {name: value for (name, _, _), value in zip(listed, sums, strict=True)}
        if self._fresh:
            _write(self._path, self._known)
            self._fresh = False
        return found

    def _one(self, name: str, content: Path | bytes, kind: Kind) -> str:
        if isinstance(content, bytes):
            return content_digest(content, sha256=kind == "sha256")
        before = _state(os.stat(content))
        entry = self._known.get(name)
        if isinstance(entry, dict) and entry.get("state") == before and kind in entry:
            return str(entry[kind])
        digest = content_digest(content, sha256=kind == "sha256")
        if time.time_ns() - max(before[1], before[2]) > _JUST_NOW:
            kept = entry if isinstance(entry, dict) and entry.get("state") == before else {}
            self._known[name] = {**kept, "state": before, kind: digest}
            self._fresh = True
        return digest


def _state(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _note_path(root: Path, *place: str) -> Path:
    return _home() / f"note-{_digest(os.path.realpath(root), *place)}.json"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:24]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, value: Mapping[str, Any]) -> None:
    with suppress(OSError):  # publishing works without
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(value).encode())
