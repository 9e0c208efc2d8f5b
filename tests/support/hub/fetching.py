"""Routes by which files go down: resolve, the cache of small files, and the content host."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from support.hub.answers import Answer, Refusal, Request, Slice
from support.hub.core import Hub
from support.hub.repos import Commit, Repo, StoredFile

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def resolve(hub: Hub, _request: Request, repo: Repo, revision: str, path: str) -> Answer:
    """What a file is, and where its bytes are: LFS at the content host, small ones in a cache."""
    commit = repo.find(revision)
    file = _file(commit, path)
    headers = {
        **_facts(commit, file),
        "X-Linked-Size": str(file.size),
        "X-Linked-ETag": f'"{file.etag}"',
    }
    if file.lfs:
        return Answer(302, headers={**headers, "Location": hub.sign(f"/cdn/{file.sha256}")})
    place = f"/api/resolve-cache/{repo.kind}s/{repo.id}/{commit.oid}/{quote(path, safe='')}"
    return Answer(307, headers={**headers, "Location": place})


def resolve_cache(hub: Hub, request: Request, repo: Repo, revision: str, path: str) -> Answer:
    """The bytes of a file that git itself holds."""
    commit = repo.find(revision)
    file = _file(commit, path)
    answer = content(request, hub.storage.object_path(file.sha256), file.etag)
    answer.headers.update(_facts(commit, file))
    return answer


def _file(commit: Commit, path: str) -> StoredFile:
    if path not in commit.files:
        headers = {"X-Repo-Commit": commit.oid}
        raise Refusal(404, "Entry not found", code="EntryNotFound", headers=headers)
    return commit.files[path]


def _facts(commit: Commit, file: StoredFile) -> dict[str, str]:
    return {
        "X-Repo-Commit": commit.oid,
        "ETag": f'"{file.etag}"',
        "Accept-Ranges": "bytes",
    }


def cdn(hub: Hub, request: Request, sha256: str) -> Answer:
    """The bytes of an object, for its signed URL."""
    hub.check_signature(request)
    return content(request, hub.storage.object_path(sha256), sha256)


def content(request: Request, path: Path, etag: str) -> Answer:
    """A file's bytes, or the range of them that was asked for."""
    headers = {
        "ETag": f'"{etag}"',
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
    }
    wanted = request.headers.get("if-match")
    if wanted not in (None, "*", etag, f'"{etag}"'):
        raise Refusal(412, "PreconditionFailed: the object is another one now")
    if request.headers.get("if-none-match") in (etag, f'"{etag}"'):
        return Answer(304, headers=headers)
    size = path.stat().st_size
    asked = _RANGE.fullmatch(request.headers.get("range", ""))
    if asked is None or asked.groups() == ("", ""):
        return Answer(200, Slice(path, 0, size), headers)
    start, end = _bounds(asked[1], asked[2], size)
    if start >= end:
        headers["Content-Range"] = f"bytes */{size}"
        raise Refusal(416, "The range is not in the object", headers=headers)
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return Answer(206, Slice(path, start, end - start), headers)


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(int(last) + 1, size) if last else size
