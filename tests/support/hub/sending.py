"""Routes by which files come up: preupload, the LFS batch, the objects themselves, verify."""

from __future__ import annotations

import base64
import hashlib
import threading
from fnmatch import fnmatch
from typing import Any

from support.hub.answers import Answer, Refusal, Request, as_json
from support.hub.core import Hub
from support.hub.repos import Commit, Repo

_LFS_JSON = {"Content-Type": "application/vnd.git-lfs+json"}


def preupload(hub: Hub, request: Request, repo: Repo, revision: str) -> Answer:
    """For each file: regular or LFS, whether it is ignored, and what is there already."""
    asked = request.json()
    commit = repo.find(revision)
    attributes = hub.storage.attributes(commit)
    ignored = asked.get("gitIgnore")
    if ignored is None:
        ignored = _text_of(hub, commit, ".gitignore")
    files = []
    for wanted in asked["files"]:
        path = wanted["path"]
        sample = base64.b64decode(wanted.get("sample", ""))
        lfs = hub.storage.wants_lfs(path, wanted["size"], sample, attributes)
        shown: dict[str, Any] = {
            "path": path,
            "uploadMode": "lfs" if lfs else "regular",
            "shouldIgnore": _is_ignored(path, ignored),
        }
        if path in commit.files:
            shown["oid"] = commit.files[path].etag
        files.append(shown)
    return as_json({"files": files, "commitOid": commit.oid})


def _text_of(hub: Hub, commit: Commit, path: str) -> str:
    file = commit.files.get(path)
    return hub.storage.read(file).decode(errors="replace") if file else ""


def _is_ignored(path: str, rules: str) -> bool:
    """The common half of .gitignore: names, globs, folders with a slash, ``!`` for exceptions."""
    ignored = False
    parts = path.split("/")
    for line in rules.splitlines():
        rule = line.strip()
        if not rule or rule.startswith("#"):
            continue
        keeps, rule = rule.startswith("!"), rule.removeprefix("!")
        names = parts[:-1] if rule.endswith("/") else parts
        rule = rule.rstrip("/")
        inner = rule.lstrip("/")
        if "/" in rule:
            heads = ["/".join(parts[: n + 1]) for n in range(len(names))]
            matches = any(fnmatch(head, inner) for head in heads)
        else:
            matches = any(fnmatch(name, rule) for name in names)
        if matches:
            ignored = not keeps
    return ignored


def lfs_batch(hub: Hub, request: Request, repo: Repo) -> Answer:
    """Where to put each object, or nothing for those that are there."""
    asked = request.json()
    if asked.get("operation") != "upload":
        raise Refusal(400, "Only uploads are served")
    in_parts = "multipart" in asked.get("transfers", ["basic"])
    objects = [_upload_of(hub, repo, item, in_parts=in_parts) for item in asked["objects"]]
    several = any("chunk_size" in _header(shown) for shown in objects)
    answer = {"transfer": "multipart" if several else "basic", "objects": objects}
    return as_json(answer, headers=_LFS_JSON)


def _header(shown: dict[str, Any]) -> dict[str, str]:
    header: dict[str, str] = shown.get("actions", {}).get("upload", {}).get("header", {})
    return header


def _upload_of(hub: Hub, repo: Repo, item: dict[str, Any], *, in_parts: bool) -> dict[str, Any]:
    oid, size = item["oid"], item["size"]
    shown: dict[str, Any] = {"oid": oid, "size": size, "authenticated": True}
    if hub.storage.has(oid, size):
        return shown
    if in_parts and size > hub.part_size:
        count = -(-size // hub.part_size)
        header = {str(n): hub.sign(f"/lfs-upload/{oid}/{n}") for n in range(1, count + 1)}
        header["chunk_size"] = str(hub.part_size)
        upload: dict[str, Any] = {"href": hub.sign(f"/lfs-complete/{oid}"), "header": header}
    else:
        upload = {"href": hub.sign(f"/lfs-upload/{oid}")}
    verify = {"href": f"{hub.endpoint}/{repo.place}.git/info/lfs/objects/verify"}
    shown["actions"] = {"upload": upload, "verify": verify}
    return shown


class Parts:
    """Parts of objects that are on their way, by object and number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[tuple[str, int], bytes] = {}

    def put(self, oid: str, number: int, content: bytes) -> str:
        """Keep a part; its etag."""
        with self._lock:
            self._parts[oid, number] = content
        return f'"{hashlib.md5(content).hexdigest()}"'

    def take(self, oid: str, asked: list[dict[str, Any]]) -> list[bytes]:
        """The parts of a finished upload, in order, if each is what the client stated."""
        with self._lock:
            found = []
            for part in sorted(asked, key=lambda part: int(part["partNumber"])):
                content = self._parts.get((oid, part["partNumber"]))
                if content is None or hashlib.md5(content).hexdigest() != part["etag"].strip('"'):
                    raise Refusal(400, f"InvalidPart: {part['partNumber']}")
                found.append(content)
            for part in asked:
                del self._parts[oid, part["partNumber"]]
            return found


def lfs_upload(hub: Hub, request: Request, oid: str) -> Answer:
    """An object in one piece; what has another SHA-256 is refused."""
    hub.check_signature(request)
    path, sha256, _ = hub.storage.receive(request.chunks())
    if sha256 != oid:
        path.unlink()
        raise Refusal(400, "BadDigest: the content is not what its SHA-256 says")
    hub.storage.keep(path, sha256)
    return Answer(headers={"ETag": f'"{sha256}"'})


def lfs_part(hub: Hub, request: Request, parts: Parts, oid: str, number: int) -> Answer:
    """One part of an object."""
    hub.check_signature(request)
    return Answer(headers={"ETag": parts.put(oid, number, request.body())})


def lfs_complete(hub: Hub, request: Request, parts: Parts, oid: str) -> Answer:
    """All parts are there: make the object of them."""
    hub.check_signature(request)
    found = parts.take(oid, request.json()["parts"])
    if hashlib.sha256(b"".join(found)).hexdigest() != oid:
        raise Refusal(400, "BadDigest: the content is not what its SHA-256 says")
    hub.storage.add_object(found)
    return Answer()


def lfs_verify(hub: Hub, request: Request, _repo: Repo) -> Answer:
    """Whether an object arrived whole."""
    asked = request.json()
    if not hub.storage.has(asked["oid"], asked["size"]):
        raise Refusal(404, "The object is not there")
    return Answer()
