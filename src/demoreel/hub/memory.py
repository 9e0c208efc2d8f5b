"""What this machine remembers of pushes, in the user's cache folder, never in a dataset.

Check sums of files, so that a file is read once for as long as it does not change; and for each
folder and repository, the commit that the folder was last pushed to, and what the dataset's files
were then. A pulled folder says itself what it was pulled from (``pulled``). All of it may be
deleted: pushing then costs reading the files again, and who changed what is found out by comparing
episodes.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from demoreel.hub.pulled import read_record
from demoreel.storage.atomic import write_file
from demoreel.storage.writer_lock import HIDDEN

Kind = Literal["sha256", "git"]
"""Which check sum: LFS names objects by their SHA-256, git by the SHA-1 of a blob."""

_THREADS = 4
_JUST_NOW = 2 * 10**9  # ns: a file changed so lately may change again and keep its times


def _home() -> Path:
    given = os.environ.get("DEMOREEL_CACHE")
    if given:
        return Path(given).expanduser() / "hub"
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "demoreel" / "hub"


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of a repository.

    Attributes:
        commit: The commit that the folder was pushed to or pulled from.
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


def last_known(root: Path, endpoint: str, repo_id: str, branch: str) -> Known | None:
    """Return what the folder was last pushed to or pulled from; None where nothing is known."""
    path = _note_path(root, endpoint, repo_id, branch)
    found = _read(path)
    commit, files = found.get("commit"), found.get("files")
    pushed = Known(commit, files) if isinstance(commit, str) and isinstance(files, dict) else None
    record = read_record(root)
    if record is None or record.repo_id != repo_id or record.episodes is not None:
        return pushed  # some episodes of a dataset are another dataset
    if pushed is not None and _changed(path) >= _changed(root / HIDDEN / "pulled.json"):
        return pushed
    return Known(record.commit, {name: there.file.digest for name, there in record.files.items()})


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class CheckSums:
    """Check sums of a dataset's files, remembered for as long as the files do not change.

    Args:
        root: The dataset's folder.
    """

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
            return str(_begun(kind, len(content), content).hexdigest())
        before = _state(os.stat(content))
        entry = self._known.get(name)
        if isinstance(entry, dict) and entry.get("state") == before and kind in entry:
            return str(entry[kind])
        with open(content, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.file_digest(file, lambda: _begun(kind, size)).hexdigest()
        if time.time_ns() - max(before[1], before[2]) > _JUST_NOW:
            kept = entry if isinstance(entry, dict) and entry.get("state") == before else {}
            self._known[name] = {**kept, "state": before, kind: digest}
            self._fresh = True
        return digest


def _begun(kind: Kind, size: int, content: bytes = b"") -> Any:
    if kind == "sha256":
        return hashlib.sha256(content)
    return hashlib.sha1(b"blob %d\0" % size + content, usedforsecurity=False)


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
    with suppress(OSError):  # a full or read-only home keeps nobody from publishing
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(value).encode())
