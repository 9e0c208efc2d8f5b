"""What a repository is: files, commits, branches and tags, as plain data that becomes JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from support.hub.answers import Refusal

MAIN = "main"

GIT_ATTRIBUTES = "".join(
    f"{pattern} filter=lfs diff=lfs merge=lfs -text\n"
    for pattern in (
        *("*.7z", "*.arrow", "*.bin", "*.gz", "*.h5", "*.lance", "*.npy", "*.npz", "*.parquet"),
        *("*.safetensors", "*.tar", "*.zip", "*.zst"),
        *("*.gif", "*.jpeg", "*.jpg", "*.png", "*.tiff", "*.webp", "*.mp4", "*.webm", "*.wav"),
    )
).encode()
"""What a new repository begins with: what is LFS. The Hub's own list is longer."""


@dataclass(frozen=True)
class StoredFile:
    """One file of a commit: where its bytes are (by SHA-256), and what git calls it."""

    sha256: str
    size: int
    lfs: bool
    blob: str

    @property
    def etag(self) -> str:
        """What identifies the content to the client: SHA-256 for LFS, git's SHA-1 otherwise."""
        return self.sha256 if self.lfs else self.blob


@dataclass(frozen=True)
class Commit:
    """A commit with all its files: small repositories need no delta."""

    oid: str
    parent: str | None
    title: str
    message: str
    author: str
    date: str
    files: dict[str, StoredFile]


@dataclass
class Repo:
    """A repository: commits by oid, and names for some of them."""

    kind: str  # "dataset" or "model"
    id: str
    private: bool
    created: str
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    references: dict[str, str] = field(default_factory=dict)  # refs/pr/1, refs/convert/parquet

    @property
    def place(self) -> str:
        """Where its pages are: ``datasets/me/x``, and for models just ``me/x``."""
        return self.id if self.kind == "model" else f"{self.kind}s/{self.id}"

    def find(self, revision: str) -> Commit:
        """The commit that a branch, tag, full ref or (shortened) oid names."""
        short = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        for names in (self.branches, self.tags):
            if short in names:
                return self.commits[names[short]]
        if revision in self.references:
            return self.commits[self.references[revision]]
        if len(revision) >= 7:
            for oid, commit in list(self.commits.items()):
                if oid.startswith(revision):
                    return commit
        raise Refusal(404, f"Invalid rev id: {revision}", code="RevisionNotFound")

    def history(self, revision: str) -> Iterator[Commit]:
        """Commits from a revision back to the first."""
        commit: Commit | None = self.find(revision)
        while commit is not None:
            yield commit
            commit = self.commits[commit.parent] if commit.parent else None

    def add_commit(
        self,
        files: Mapping[str, StoredFile],
        *,
        branch: str,
        title: str,
        message: str = "",
        author: str,
    ) -> Commit:
        """Put a commit on top of a branch (or ``refs/pr/...``), and move the branch there."""
        names = self.references if branch.startswith("refs/") else self.branches
        parent = names.get(branch)
        listing = {path: files[path] for path in sorted(files)}
        identity = [parent, title, message, self.id, len(self.commits), _plain(listing)]
        oid = hashlib.sha1(json.dumps(identity).encode()).hexdigest()
        commit = Commit(oid, parent, title, message, author, now(), listing)
        self.commits[oid] = commit
        names[branch] = oid
        return commit

    def plain(self) -> dict[str, Any]:
        """Itself as JSON."""
        commits = {
            oid: {**vars(commit), "files": _plain(commit.files)}
            for oid, commit in self.commits.items()
        }
        return {**vars(self), "commits": commits}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Repo:
        """The repository that ``plain`` describes."""
        commits = {
            oid: Commit(
                **{**commit, "files": {p: StoredFile(*f) for p, f in commit["files"].items()}}
            )
            for oid, commit in plain["commits"].items()
        }
        return cls(**{**plain, "commits": commits})


def _plain(files: Mapping[str, StoredFile]) -> dict[str, list[Any]]:
    return {path: [f.sha256, f.size, f.lfs, f.blob] for path, f in files.items()}


def now() -> str:
    """This moment, as the Hub writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def git_blob(content: bytes) -> str:
    """The SHA-1 that git gives to a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def lfs_pointer_blob(sha256: str, size: int) -> str:
    """The SHA-1 that git gives to the small file which stands for an LFS object."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
    return git_blob(pointer.encode())


def folders_of(files: Mapping[str, StoredFile]) -> dict[str, str]:
    """Every folder of a commit, with an oid that changes with its content."""
    content: dict[str, list[str]] = {}
    for path, file in files.items():
        for parent in PurePosixPath(path).parents:
            if str(parent) != ".":
                content.setdefault(str(parent), []).append(f"{path} {file.blob}")
    return {
        folder: hashlib.sha1("\n".join(sorted(lines)).encode()).hexdigest()
        for folder, lines in content.items()
    }


def check_path(path: str) -> str:
    """A path inside the repository, or a refusal."""
    parts = path.split("/")
    if not path or any(part in ("", ".", "..", ".git") for part in parts):
        raise Refusal(400, f"Invalid path: {path!r}")
    return path
