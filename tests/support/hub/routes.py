"""Which path is which: the name of a request, and the function that answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from support.hub import buckets, cards, fetching, looking, sending, writing
from support.hub.answers import Answer, Refusal, Request, as_json
from support.hub.core import KINDS, Hub

ROUTES = frozenset(
    {
        *("whoami", "validate-yaml", "registry", "create", "delete", "move", "settings", "info"),
        *("xet", "tree"),
        *("paths-info", "refs", "commits", "tag", "branch", "preupload", "commit", "resolve"),
        *("resolve-cache", "cdn", "lfs-batch", "lfs-upload", "lfs-complete", "lfs-verify"),
        *("bucket", "bucket-tree", "bucket-paths-info", "bucket-batch", "bucket-resolve"),
    }
)
"""The names that faults and logs use."""


@dataclass(frozen=True)
class Route:
    """What a request is: its name, the repository it is about, and who answers."""

    name: str
    repo_id: str
    answer: Callable[[], Answer]


def route_of(hub: Hub, request: Request, parts: sending.Parts) -> Route:
    """Find the route of a request; paths that the Hub does not know become 404."""
    match [request.method.replace("HEAD", "GET"), *request.parts]:
        case ["GET", "api", "whoami-v2"]:
            return Route("whoami", "", partial(looking.whoami, hub, request))
        case ["POST", "api", "validate-yaml"]:
            return Route("validate-yaml", "", partial(cards.validate, request))
        case ["GET", "api", "agent-harnesses"]:  # clients of 2.x ask once a day
            return Route("registry", "", lambda: as_json({"standardEnvVars": [], "harnesses": {}}))
        case ["POST", "api", "repos", "create"]:
            return Route("create", "", partial(writing.create_repo, hub, request))
        case ["DELETE", "api", "repos", "delete"]:
            return Route("delete", "", partial(writing.delete_repo, hub, request))
        case ["POST", "api", "repos", "move"]:
            return Route("move", "", partial(writing.move_repo, hub, request))
        case ["GET", "cdn", sha256]:
            return Route("cdn", "", partial(fetching.cdn, hub, request, sha256))
        case ["PUT", "lfs-upload", oid]:
            return Route("lfs-upload", "", partial(sending.lfs_upload, hub, request, oid))
        case ["PUT", "lfs-upload", oid, number]:
            put = partial(sending.lfs_part, hub, request, parts, oid, int(number))
            return Route("lfs-upload", "", put)
        case ["POST", "lfs-complete", oid]:
            complete = partial(sending.lfs_complete, hub, request, parts, oid)
            return Route("lfs-complete", "", complete)
        case [method, "api", "buckets", *rest]:
            return Route(*buckets.api(hub, request, method, rest))
        case ["GET", "buckets", space, name, "resolve", *path]:
            file = partial(buckets.resolve, hub, request, f"{space}/{name}", "/".join(path))
            return Route("bucket-resolve", f"{space}/{name}", file)
        case ["GET", "api", "resolve-cache", kind, space, name, *rest] if kind in KINDS and rest:
            below = ["resolve-cache", *rest]
            return _in_repo(hub, request, KINDS[kind], f"{space}/{name}", below)
        case [_, "api", kind, space, name, *rest] if kind in KINDS:
            return _in_repo(hub, request, KINDS[kind], f"{space}/{name}", rest or ["info"])
        case [_, "datasets", space, name, *rest] if rest:
            return _in_repo(hub, request, "dataset", f"{space}/{name}", rest)
        case [_, space, name, *rest] if rest and space not in ("api", "datasets", "spaces"):
            return _in_repo(hub, request, "model", f"{space}/{name}", rest)
    return _unknown(request)


def _unknown(request: Request) -> Route:
    def refuse() -> Answer:
        raise Refusal(404, f"Sorry, we can't find the page {request.method} {request.path}")

    return Route("unknown", "", refuse)


def _no_xet(*_: object) -> Answer:
    raise Refusal(404, "No Xet storage here: take HubServer.environment (HF_HUB_DISABLE_XET=1)")


def _in_repo(hub: Hub, request: Request, kind: str, repo_id: str, rest: list[str]) -> Route:
    """A route inside a repository: what it does, and the rights it needs."""
    git_id = repo_id.removesuffix(".git")
    if (kind, git_id) in hub.moved:
        return _leads_to(hub, request, git_id, hub.moved[kind, git_id])

    def read(name: str, answer: Callable[..., Answer], *more: str) -> Route:
        def run() -> Answer:
            return answer(hub, request, hub.readable(request, kind, git_id), *more)

        return Route(name, git_id, run)

    def write(name: str, answer: Callable[..., Answer], *more: str) -> Route:
        def run() -> Answer:
            repo, _ = hub.writable(request, kind, git_id)
            return answer(hub, request, repo, *more)

        return Route(name, git_id, run)

    def commit(branch: str) -> Answer:
        repo, caller = hub.writable(request, kind, git_id)
        return writing.commit(hub, request, repo, branch, author=caller.name)

    match [request.method.replace("HEAD", "GET"), *_whole_refs(rest)]:
        case ["GET", "info"]:
            return read("info", looking.repo_info)
        case ["GET", "revision", revision]:
            return read("info", looking.repo_info, revision)
        case ["GET", "tree", revision, *folder]:
            return read("tree", looking.tree, revision, "/".join(folder))
        case ["POST", "paths-info", revision]:
            return read("paths-info", looking.paths_info, revision)
        case ["GET", "refs"]:
            return read("refs", looking.refs)
        case ["GET", "commits", revision]:
            return read("commits", looking.commits, revision)
        case ["GET", "resolve", revision, *path]:
            return read("resolve", fetching.resolve, revision, "/".join(path))
        case ["GET", "resolve-cache", revision, *path]:
            return read("resolve-cache", fetching.resolve_cache, revision, "/".join(path))
        case ["POST", "tag", revision]:
            return write("tag", writing.create_tag, revision)
        case ["DELETE", "tag", tag]:
            return write("tag", writing.delete_tag, tag)
        case ["POST", "branch", branch]:
            return write("branch", writing.create_branch, branch)
        case ["DELETE", "branch", branch]:
            return write("branch", writing.delete_branch, branch)
        case ["POST", "preupload", revision]:
            return write("preupload", sending.preupload, revision)
        case ["POST", "commit", branch]:
            return Route("commit", git_id, partial(commit, branch))
        case ["PUT", "settings"]:
            return write("settings", writing.change_settings)
        case ["GET", "auth-check"]:
            return read("info", lambda *_: Answer())
        case ["GET", "xet-write-token" | "xet-read-token", *_]:
            return read("xet", _no_xet)
        case ["POST", "info", "lfs", "objects", "batch"]:
            return write("lfs-batch", sending.lfs_batch)
        case ["POST", "info", "lfs", "objects", "verify"]:
            return write("lfs-verify", sending.lfs_verify)
    return _unknown(request)


def _whole_refs(rest: list[str]) -> list[str]:
    """``refs/pr/1`` and ``refs/convert/parquet`` are one revision, also where a client cut them."""
    if len(rest) > 3 and rest[1] == "refs" and rest[2] in ("pr", "convert", "heads", "tags"):
        return [rest[0], "/".join(rest[1:4]), *rest[4:]]
    return rest


def _leads_to(hub: Hub, request: Request, old_id: str, new_id: str) -> Route:
    place = request.path.replace(quote(old_id), quote(new_id), 1)
    location = {"Location": place}
    return Route("move", old_id, lambda: Answer(307, headers=location))
