"""Routes that only look: who am I, repository info, tree, paths, refs, commits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlencode

from support.hub.answers import Answer, Refusal, Request, as_json
from support.hub.cards import read_card, tags_of
from support.hub.core import Hub
from support.hub.repos import MAIN, Commit, Repo, StoredFile, folders_of


def whoami(hub: Hub, request: Request) -> Answer:
    """Whose token this is."""
    caller = hub.signed_in(request)
    return as_json(
        {
            "type": "user",
            "id": f"id-of-{caller.name}",
            "name": caller.name,
            "fullname": caller.name,
            "email": f"{caller.name}@example.org",
            "canPay": False,
            "isPro": False,
            "orgs": [],
            "auth": {
                "type": "access_token",
                "accessToken": {"displayName": "test", "role": caller.role},
            },
        }
    )


def repo_info(hub: Hub, request: Request, repo: Repo, revision: str = MAIN) -> Answer:
    """A repository at a revision: its files, its card, its tags."""
    commit = repo.find(revision)
    card = read_card(hub.storage, commit)
    whole = {
        "_id": f"id-of-{repo.id}",
        "id": repo.id,
        "author": repo.id.split("/")[0],
        "sha": commit.oid,
        "createdAt": repo.created,
        "lastModified": commit.date,
        "private": repo.private,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": tags_of(card),
        "cardData": card,
        "siblings": [
            _sibling(path, file, blobs=request.flag("blobs")) for path, file in commit.files.items()
        ],
        "usedStorage": sum(file.size for file in commit.files.values()),
    }
    wanted = request.values("expand")
    if wanted:
        unknown = [name for name in wanted if name not in whole]
        if unknown:
            raise Refusal(400, f"Invalid option in expand: {', '.join(unknown)}")
        return as_json({name: whole[name] for name in ("_id", "id", *wanted)})
    return as_json(whole)


def _sibling(path: str, file: StoredFile, *, blobs: bool) -> dict[str, Any]:
    if not blobs:
        return {"rfilename": path}
    shown: dict[str, Any] = {"rfilename": path, "size": file.size, "blobId": file.blob}
    if file.lfs:
        shown["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": 134}
    return shown


def tree(hub: Hub, request: Request, repo: Repo, revision: str, folder: str) -> Answer:
    """The entries of a folder, or of everything below it, a page at a time."""
    commit = repo.find(revision)
    folders = folders_of(commit.files)
    folder = folder.strip("/")
    if folder and folder not in folders:
        raise Refusal(
            404,
            f'"{folder}" does not exist on "{revision}"',
            code="EntryNotFound",
            headers={"X-Repo-Commit": commit.oid},
        )
    inside = f"{folder}/" if folder else ""
    paths = [
        path
        for path in sorted([*folders, *commit.files])
        if path.startswith(inside) and (request.flag("recursive") or "/" not in path[len(inside) :])
    ]
    entries = [entry(repo, commit, path, folders, expand=request.flag("expand")) for path in paths]
    return page(hub, request, entries)


def paths_info(_hub: Hub, request: Request, repo: Repo, revision: str) -> Answer:
    """What some paths are; those that do not exist are left out."""
    paths, expand = paths_asked_for(request)
    commit = repo.find(revision)
    folders = folders_of(commit.files)
    known = [path.strip("/") for path in paths]
    return as_json(
        [
            entry(repo, commit, path, folders, expand=expand)
            for path in known
            if path in commit.files or path in folders
        ]
    )


def paths_asked_for(request: Request) -> tuple[list[str], bool]:
    """The paths of a form or of JSON, and whether more is wanted about them."""
    body = request.body()
    if "json" in request.headers.get("content-type", ""):
        asked = json.loads(body)
        return list(asked["paths"]), bool(asked.get("expand"))
    form = parse_qs(body.decode())
    return form.get("paths", []), form.get("expand", [""])[0].lower() == "true"


def entry(
    repo: Repo, commit: Commit, path: str, folders: dict[str, str], *, expand: bool
) -> dict[str, Any]:
    """One line of a tree."""
    file = commit.files.get(path)
    if file is None:
        shown: dict[str, Any] = {
            "type": "directory",
            "oid": folders[path],
            "size": 0,
            "path": path,
        }
    else:
        shown = {"type": "file", "oid": file.blob, "size": file.size, "path": path}
        if file.lfs:
            shown["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": 134}
    if expand:
        last = _last_change(repo, commit, path)
        shown["lastCommit"] = {"id": last.oid, "title": last.title, "date": last.date}
        if file is not None:
            scans: dict[str, Any] = {"avScan": None, "pickleImportScan": None}
            shown["securityFileStatus"] = {"status": "unscanned", **scans}
    return shown


def _last_change(repo: Repo, commit: Commit, path: str) -> Commit:
    def state(at: Commit) -> object:
        return at.files.get(path) or folders_of(at.files).get(path)

    while commit.parent and state(repo.commits[commit.parent]) == state(commit):
        commit = repo.commits[commit.parent]
    return commit


def refs(_hub: Hub, request: Request, repo: Repo) -> Answer:
    """Branches, tags, and what else points at commits."""

    def listed(names: dict[str, str], prefix: str, cut: str = "") -> list[dict[str, str]]:
        return [
            {"name": name.removeprefix(cut), "ref": f"{prefix}{name}", "targetCommit": oid}
            for name, oid in names.items()
        ]

    others = dict(repo.references)  # commits may come in meanwhile
    converts = {n: o for n, o in others.items() if n.startswith("refs/convert/")}
    answer = {
        "branches": listed(dict(repo.branches), "refs/heads/"),
        "converts": listed(converts, "", "refs/convert/"),
        "tags": listed(dict(repo.tags), "refs/tags/"),
    }
    if request.flag("include_prs"):
        requests = {n: o for n, o in others.items() if n.startswith("refs/pr/")}
        answer["pullRequests"] = listed(requests, "", "refs/pr/")
    return as_json(answer)


def commits(hub: Hub, request: Request, repo: Repo, revision: str) -> Answer:
    """The history of a revision, newest first."""
    listed = [
        {
            "id": commit.oid,
            "title": commit.title,
            "message": commit.message,
            "authors": [{"user": commit.author}],
            "date": commit.date,
        }
        for commit in repo.history(revision)
    ]
    return page(hub, request, listed)


def page(hub: Hub, request: Request, entries: Sequence[Any]) -> Answer:
    """One page of a list, with the ``Link`` to the next."""
    start = int(request.query.get("cursor", ["0"])[0])
    limit = min(int(request.query.get("limit", [str(hub.page_size)])[0]), hub.page_size)
    headers = {}
    if start + limit < len(entries):
        query = {**request.query, "cursor": [str(start + limit)]}
        following = f"{hub.endpoint}{request.path}?{urlencode(query, doseq=True)}"
        headers["Link"] = f'<{following}>; rel="next"'
    return as_json(list(entries[start : start + limit]), headers=headers)
