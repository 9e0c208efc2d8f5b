"""Buckets (``hf://buckets/org/name``): files without commits. Listing, reading, deleting.

The client uploads to buckets through Xet alone, and so downloads ``download_bucket_files``: both
stay out of reach here. ``HfFileSystem`` reads by plain ranged requests, and those are served.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from support.hub.answers import Answer, Refusal, Request, as_json
from support.hub.core import Hub
from support.hub.looking import page, paths_asked_for
from support.hub.repos import MAIN, Commit, Repo, StoredFile, check_path, folders_of
from support.hub.writing import is_private

KIND = "bucket"

Found = tuple[str, str, Callable[[], Answer]]


def api(hub: Hub, request: Request, method: str, rest: list[str]) -> Found:
    """The route below ``/api/buckets``: its name, the bucket, the answer."""
    match [method, *rest]:
        case ["GET", space]:
            return "bucket", "", partial(_list, hub, request, space)
        case [_, space, name, *below]:
            bucket_id = f"{hub.user if space == 'me' else space}/{name}"
            found, answer = _inside(hub, request, method, bucket_id, below)
            return found, bucket_id, answer
    return "bucket", "", _not_served


def _inside(
    hub: Hub, request: Request, method: str, bucket_id: str, below: list[str]
) -> tuple[str, Callable[[], Answer]]:
    match [method, *below]:
        case ["POST"]:
            return "bucket", partial(_create, hub, request, bucket_id)
        case ["GET"]:
            return "bucket", lambda: as_json(_shown(hub.readable(request, KIND, bucket_id)))
        case ["DELETE"]:
            return "bucket", partial(_delete, hub, request, bucket_id)
        case ["GET", "tree", *prefix]:
            return "bucket-tree", partial(_tree, hub, request, bucket_id, "/".join(prefix))
        case ["POST", "paths-info"]:
            return "bucket-paths-info", partial(_paths_info, hub, request, bucket_id)
        case ["POST", "batch"]:
            return "bucket-batch", partial(_batch, hub, request, bucket_id)
    return "bucket", _not_served


def _not_served() -> Answer:
    raise Refusal(501, "This server has no Xet storage: buckets can be read, not written to")


def _create(hub: Hub, request: Request, bucket_id: str) -> Answer:
    wanted = request.json()
    caller = hub.may_write(request, bucket_id.split("/")[0])
    url = f"{hub.endpoint}/buckets/{bucket_id}"
    with hub.storage.lock:
        if (KIND, bucket_id) in hub.storage.repos:
            return as_json({"error": "You already created this bucket", "url": url}, status=409)
        private = is_private(wanted)
        hub.storage.create(KIND, bucket_id, private=private, author=caller.name)
    return as_json({"url": url})


def _delete(hub: Hub, request: Request, bucket_id: str) -> Answer:
    bucket, _ = hub.writable(request, KIND, bucket_id)
    hub.storage.delete(bucket)
    return Answer()


def _list(hub: Hub, request: Request, space: str) -> Answer:
    caller = hub.signed_in(request)
    space = caller.name if space == "me" else space
    found = [
        _shown(hub.readable(request, kind, bucket_id))
        for kind, bucket_id in list(hub.storage.repos)
        if kind == KIND and bucket_id.split("/")[0] == space
    ]
    return page(hub, request, found)


def _shown(bucket: Repo) -> dict[str, Any]:
    files = bucket.find(MAIN).files
    return {
        "id": bucket.id,
        "private": bucket.private,
        "createdAt": bucket.created,
        "size": sum(file.size for file in files.values()),
        "totalFiles": len(files),
    }


def _tree(hub: Hub, request: Request, bucket_id: str, prefix: str) -> Answer:
    commit = hub.readable(request, KIND, bucket_id).find(MAIN)
    prefix = prefix.strip("/")
    inside = f"{prefix}/" if prefix else ""
    files = {path for path in commit.files if path == prefix or path.startswith(inside)}
    folders: set[str] = set()
    if not request.flag("recursive"):
        folders = {folder for folder in folders_of(commit.files) if folder.startswith(inside)}
        files, folders = (
            {path for path in paths if "/" not in path[len(inside) :]} for paths in (files, folders)
        )
    shown = [
        _file_shown(commit, path)
        if path in files
        else {"type": "directory", "path": path, "uploadedAt": commit.date}
        for path in sorted(files | folders)
    ]
    return page(hub, request, shown)


def _file_shown(commit: Commit, path: str) -> dict[str, Any]:
    file = commit.files[path]
    times = {"mtime": commit.date, "uploadedAt": commit.date}
    return {"type": "file", "path": path, "size": file.size, "xetHash": file.sha256, **times}


def _paths_info(hub: Hub, request: Request, bucket_id: str) -> Answer:
    paths, _ = paths_asked_for(request)
    commit = hub.readable(request, KIND, bucket_id).find(MAIN)
    return as_json([_file_shown(commit, path) for path in paths if path in commit.files])


def _batch(hub: Hub, request: Request, bucket_id: str) -> Answer:
    """Deletions, and files whose content is here already (copies)."""
    bucket, caller = hub.writable(request, KIND, bucket_id)
    changes: dict[str, StoredFile | None] = {}
    failed = []
    for line in request.body().splitlines():
        operation = json.loads(line)
        path = check_path(operation["path"])
        if operation["type"] == "deleteFile":
            changes[path] = None
        elif hub.storage.has(operation["xetHash"]):
            changes[path] = hub.storage.stored_lfs(operation["xetHash"])
        else:
            failed.append({"path": path, "error": "The content is not in Xet storage"})
    hub.storage.commit(bucket, changes, branch=MAIN, title="batch", author=caller.name)
    answer = {"success": not failed, "processed": len(changes), "failed": failed}
    return as_json(answer, status=200 if changes or not failed else 422)


def resolve(hub: Hub, request: Request, bucket_id: str, path: str) -> Answer:
    """What a file is, and where its bytes are: always at the content host."""
    commit = hub.readable(request, KIND, bucket_id).find(MAIN)
    if path not in commit.files:
        raise Refusal(404, "Entry not found", code="EntryNotFound")
    file = commit.files[path]
    headers = {
        "ETag": f'"{file.sha256}"',
        "Accept-Ranges": "bytes",
        "X-Linked-Size": str(file.size),
        "X-Linked-ETag": f'"{file.sha256}"',
        "Location": hub.sign(f"/cdn/{file.sha256}"),
    }
    return Answer(302, headers=headers)
