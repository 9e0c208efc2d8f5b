"""Repositories and objects in a folder: bytes by their SHA-256, commits as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

from support.hub.answers import Refusal
from support.hub.repos import (
    GIT_ATTRIBUTES,
    MAIN,
    Commit,
    Repo,
    StoredFile,
    git_blob,
    lfs_pointer_blob,
    now,
)

_PIECE = 1 << 20


class Storage:
    """Everything the server holds. ``lock`` is held while repositories are looked at or changed."""

    def __init__(self, folder: Path, *, lfs_above: int) -> None:
        self.lock = threading.RLock()
        self.lfs_above = lfs_above
        self._objects = folder / "objects"
        self._repos = folder / "repos"
        self._incoming = folder / "incoming"
        for made in (self._objects, self._repos, self._incoming):
            made.mkdir(parents=True, exist_ok=True)
        self.repos: dict[tuple[str, str], Repo] = {}
        for path in sorted(self._repos.glob("*.json")):
            repo = Repo.from_plain(json.loads(path.read_text()))
            self.repos[repo.kind, repo.id] = repo

    # Objects

    def object_path(self, sha256: str) -> Path:
        """Where an object lies, or would lie."""
        return self._objects / sha256[:2] / sha256

    def has(self, sha256: str, size: int | None = None) -> bool:
        """Whether an object is there, whole."""
        path = self.object_path(sha256)
        return path.is_file() and (size is None or path.stat().st_size == size)

    def receive(self, chunks: Iterable[bytes]) -> tuple[Path, str, int]:
        """Write a body to a file of its own; the file, its SHA-256 and its size."""
        path = self._incoming / uuid.uuid4().hex
        digest, size = hashlib.sha256(), 0
        try:
            with path.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
        except BaseException:
            path.unlink()  # half an upload is no upload
            raise
        return path, digest.hexdigest(), size

    def keep(self, path: Path, sha256: str) -> None:
        """Make a received file an object."""
        target = self.object_path(sha256)
        target.parent.mkdir(exist_ok=True)
        os.replace(path, target)

    def add_object(self, chunks: Iterable[bytes]) -> tuple[str, int]:
        """Store bytes; their SHA-256 and their size."""
        path, sha256, size = self.receive(chunks)
        self.keep(path, sha256)
        return sha256, size

    def read(self, file: StoredFile) -> bytes:
        """A file's bytes."""
        return self.object_path(file.sha256).read_bytes()

    # Files of a commit

    def store_regular(self, content: bytes) -> StoredFile:
        """A file that git itself holds."""
        sha256, size = self.add_object([content])
        return StoredFile(sha256, size, False, git_blob(content))

    def stored_lfs(self, sha256: str) -> StoredFile:
        """A file whose bytes are an object that was uploaded before."""
        size = self.object_path(sha256).stat().st_size
        return StoredFile(sha256, size, True, lfs_pointer_blob(sha256, size))

    def store(self, path: str, source: Path | bytes, attributes: bytes) -> StoredFile:
        """A file put there without a client, as LFS or regular as the Hub would have it."""
        sha256, size = self.add_object([source] if isinstance(source, bytes) else _pieces(source))
        with self.object_path(sha256).open("rb") as file:
            sample = file.read(512)
        if self.wants_lfs(path, size, sample, attributes):
            return self.stored_lfs(sha256)
        return StoredFile(sha256, size, False, git_blob(self.object_path(sha256).read_bytes()))

    def wants_lfs(self, path: str, size: int, sample: bytes, attributes: bytes) -> bool:
        """Large files, binary files and those that ``.gitattributes`` names go to LFS."""
        if size == 0:
            return False
        patterns = [
            line.split()[0]
            for line in attributes.decode(errors="replace").splitlines()
            if "filter=lfs" in line
        ]
        name = path.rsplit("/", 1)[-1]
        named = any(fnmatch(name, pattern) or fnmatch(path, pattern) for pattern in patterns)
        return named or size > self.lfs_above or b"\0" in sample

    def attributes(self, commit: Commit) -> bytes:
        """The ``.gitattributes`` of a commit."""
        file = commit.files.get(".gitattributes")
        return self.read(file) if file else b""

    # Repositories

    def create(self, kind: str, repo_id: str, *, private: bool, author: str) -> Repo:
        """A new repository with the Hub's first commit; a bucket is just empty."""
        with self.lock:
            repo = Repo(kind, repo_id, private, now())
            first = {}
            if kind != "bucket":
                first[".gitattributes"] = self.store_regular(GIT_ATTRIBUTES)
            repo.add_commit(first, branch=MAIN, title="initial commit", author=author)
            self.repos[kind, repo_id] = repo
            self.save(repo)
            return repo

    def delete(self, repo: Repo) -> None:
        """Forget a repository; its objects stay."""
        with self.lock:
            del self.repos[repo.kind, repo.id]
            self._file_of(repo).unlink()

    def move(self, repo: Repo, new_id: str) -> None:
        """Give a repository another name."""
        with self.lock:
            self.delete(repo)
            repo.id = new_id
            self.repos[repo.kind, new_id] = repo
            self.save(repo)

    def save(self, repo: Repo) -> None:
        """Write a repository's commits and refs."""
        path = self._file_of(repo)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(repo.plain()))
        os.replace(part, path)

    def commit(
        self,
        repo: Repo,
        changes: Mapping[str, StoredFile | None],
        *,
        branch: str,
        title: str,
        message: str = "",
        author: str,
    ) -> Commit:
        """Apply changes (None deletes) to a branch's files, as one commit."""
        with self.lock:
            files = dict(repo.find(branch).files)
            for path, file in changes.items():
                if file is None:
                    files.pop(path, None)
                else:
                    files[path] = file
            made = repo.add_commit(
                files, branch=branch, title=title, message=message, author=author
            )
            self.save(repo)
            return made

    def _file_of(self, repo: Repo) -> Path:
        return self._repos / f"{repo.kind}--{repo.id.replace('/', '--')}.json"


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def missing_repo(*, signed_in: bool) -> Refusal:
    """What the Hub answers for a repository that is not there or not yours to see."""
    status = 404 if signed_in else 401  # it does not tell strangers which of both
    return Refusal(status, "Repository not found", code="RepoNotFound")
