"""Routes that change repositories: create, delete, move, tags, branches, and commits."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from support.hub.answers import Answer, Refusal, Request, as_json
from support.hub.core import Hub
from support.hub.repos import MAIN, Commit, Repo, StoredFile, check_path

CONFLICT = "A commit has happened since. Please refresh and try again."


def create_repo(hub: Hub, request: Request) -> Answer:
    """A new repository; 409 where it exists."""
    wanted = request.json()
    kind, repo_id = _named(hub, request, wanted)
    caller = hub.may_write(request, repo_id.split("/")[0])
    url = f"{hub.endpoint}/{'' if kind == 'model' else kind + 's/'}{repo_id}"
    with hub.storage.lock:
        if (kind, repo_id) in hub.storage.repos:
            message = f"You already created this {kind} repo: {repo_id}"
            return as_json({"error": message, "url": url}, status=409)
        private = is_private(wanted)
        hub.moved.pop((kind, repo_id), None)
        hub.storage.create(kind, repo_id, private=private, author=caller.name)
    return as_json({"url": url, "name": repo_id, "id": repo_id})


def is_private(wanted: dict[str, Any]) -> bool:
    """Older clients say ``private``, newer ones ``visibility``."""
    return wanted.get("private") is True or wanted.get("visibility") == "private"


def delete_repo(hub: Hub, request: Request) -> Answer:
    """Away with it."""
    kind, repo_id = _named(hub, request, request.json())
    repo, _ = hub.writable(request, kind, repo_id)
    hub.storage.delete(repo)
    return Answer()


def move_repo(hub: Hub, request: Request) -> Answer:
    """Another name; the old one leads to it."""
    wanted = request.json()
    kind = wanted.get("type") or "model"
    repo, _ = hub.writable(request, kind, wanted["fromRepo"])
    new_id = wanted["toRepo"]
    hub.may_write(request, new_id.split("/")[0])
    if (kind, new_id) in hub.storage.repos:
        raise Refusal(409, f"A repository with the name {new_id} already exists")
    hub.moved[kind, repo.id] = new_id
    hub.storage.move(repo, new_id)
    return Answer()


def _named(hub: Hub, request: Request, wanted: dict[str, Any]) -> tuple[str, str]:
    namespace = wanted.get("organization") or hub.signed_in(request).name
    return wanted.get("type") or "model", f"{namespace}/{wanted['name']}"


def change_settings(hub: Hub, request: Request, repo: Repo) -> Answer:
    """Hide or show a repository."""
    wanted = request.json()
    with hub.storage.lock:
        if "private" in wanted or "visibility" in wanted:
            repo.private = is_private(wanted)
        hub.storage.save(repo)
    return Answer()


def create_tag(hub: Hub, request: Request, repo: Repo, revision: str) -> Answer:
    """A name for a commit; 409 where the name is taken."""
    tag = request.json()["tag"]
    with hub.storage.lock:
        commit = repo.find(revision)
        if tag in repo.tags:
            raise Refusal(409, f"Tag reference exists already: {tag}")
        repo.tags[tag] = commit.oid
        hub.storage.save(repo)
    return Answer()


def delete_tag(hub: Hub, _request: Request, repo: Repo, tag: str) -> Answer:
    """Forget a tag."""
    with hub.storage.lock:
        if tag not in repo.tags:
            raise Refusal(404, f"Invalid rev id: {tag}", code="RevisionNotFound")
        del repo.tags[tag]
        hub.storage.save(repo)
    return Answer()


def create_branch(hub: Hub, request: Request, repo: Repo, branch: str) -> Answer:
    """A branch from a starting point; 409 where it exists."""
    start = request.json().get("startingPoint") or MAIN
    with hub.storage.lock:
        commit = repo.find(start)
        if branch in repo.branches:
            raise Refusal(409, f"Reference already exists: refs/heads/{branch}")
        repo.branches[branch] = commit.oid
        hub.storage.save(repo)
    return Answer()


def delete_branch(hub: Hub, _request: Request, repo: Repo, branch: str) -> Answer:
    """Forget a branch, but never the first."""
    with hub.storage.lock:
        if branch == MAIN:
            raise Refusal(403, "Cannot delete the default branch")
        if branch not in repo.branches:
            raise Refusal(404, f"Invalid rev id: {branch}", code="RevisionNotFound")
        del repo.branches[branch]
        hub.storage.save(repo)
    return Answer()


def commit(hub: Hub, request: Request, repo: Repo, branch: str, *, author: str) -> Answer:
    """Apply a list of operations as one commit, unless another commit was quicker."""
    header, operations = _operations(request.body())
    with hub.storage.lock:
        if branch not in repo.branches and branch not in repo.references:
            raise Refusal(404, f"Invalid rev id: {branch}", code="RevisionNotFound")
        head = repo.find(branch)
        if header.get("parentCommit") not in (None, head.oid):
            raise Refusal(412, CONFLICT)
        changes = _changes(hub, repo, head, operations)
        number = None
        if request.flag("create_pr"):
            number = 1 + sum(name.startswith("refs/pr/") for name in repo.references)
            branch = f"refs/pr/{number}"
            repo.references[branch] = head.oid
        made = hub.storage.commit(
            repo,
            changes,
            branch=branch,
            title=header["summary"],
            message=header.get("description", ""),
            author=author,
        )
    page = f"{hub.endpoint}/{repo.place}"
    answer = {
        "success": True,
        "commitOid": made.oid,
        "commitUrl": f"{page}/commit/{made.oid}",
        "hookOutput": "",
    }
    if number is not None:
        answer["pullRequestUrl"] = f"{page}/discussions/{number}"
    return as_json(answer)


def _operations(body: bytes) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    try:
        lines = [json.loads(line) for line in body.splitlines() if line.strip()]
        items = [(line["key"], line["value"]) for line in lines]
    except (ValueError, KeyError, TypeError):
        raise Refusal(400, "The commit is no list of JSON lines with key and value") from None
    headers = [value for key, value in items if key == "header"]
    if len(headers) != 1 or not headers[0].get("summary"):
        raise Refusal(400, "The commit needs one header with a summary")
    return headers[0], [item for item in items if item[0] != "header"]


def _changes(
    hub: Hub, repo: Repo, head: Commit, operations: list[tuple[str, dict[str, Any]]]
) -> dict[str, StoredFile | None]:
    changes: dict[str, StoredFile | None] = {}
    for key, value in operations:
        for path, file in _change(hub, repo, head, key, value):
            changes[check_path(path)] = file
    return changes


def _change(
    hub: Hub, repo: Repo, head: Commit, key: str, value: dict[str, Any]
) -> Iterator[tuple[str, StoredFile | None]]:
    path = value["path"]
    match key:
        case "file":
            encoded = value.get("encoding") == "base64"
            content = value["content"]
            yield (
                path,
                hub.storage.store_regular(
                    base64.b64decode(content) if encoded else content.encode()
                ),
            )
        case "lfsFile":
            if not hub.storage.has(value["oid"], value.get("size")):
                raise Refusal(
                    400,
                    "Your push was rejected because an LFS pointer pointed to a file that does "
                    f"not exist. Offending file: {path}",
                )
            yield path, hub.storage.stored_lfs(value["oid"])
        case "copyFile":
            source = repo.find(value.get("srcRevision") or head.oid).files.get(value["srcPath"])
            if source is None:
                raise Refusal(404, "The file to copy doesn't exist", code="EntryNotFound")
            yield path, source
        case "deletedFile":
            if path not in head.files:
                message = f"A file with this name doesn't exist: {path}"
                raise Refusal(404, message, code="EntryNotFound")
            yield path, None
        case "deletedFolder":
            inside = path.rstrip("/") + "/"
            gone = [name for name in head.files if name.startswith(inside)]
            if not gone:
                message = f"A file with this name doesn't exist: {path}"
                raise Refusal(404, message, code="EntryNotFound")
            yield from ((name, None) for name in gone)
        case _:
            raise Refusal(400, f"Unknown operation: {key}")
