"""The face of the server: starting it, looking into it, putting things there, breaking it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from demoreel.errors import ArgumentError
from support.hub.core import Account, Hub
from support.hub.faults import Held
from support.hub.repos import MAIN, Commit, Repo, StoredFile
from support.hub.serving import HttpServer, LoggedRequest
from support.hub.storage import Storage

RepoType = Literal["dataset", "model", "bucket"]


class HubServer:
    """A Hub on loopback, in threads of this process; a context manager.

    Args:
        folder: Where repositories are kept. A folder that was used before is served again.
        user: The owner of ``token``, who may read and write every namespace.
        page_size: Entries per page of trees and commits.
        lfs_above: Files of more bytes are LFS, as are those that ``.gitattributes`` names.
        part_size: LFS files of more bytes are uploaded in parts of so many.
        url_lifetime: Seconds for which a signed URL is good.
        port: 0 for a free one.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        user: str = "me",
        page_size: int = 1000,
        lfs_above: int = 10_000_000,
        part_size: int = 64_000_000,
        url_lifetime: float = 3600,
        port: int = 0,
    ) -> None:
        self.folder = Path(folder)
        self.user = user
        self._hub = Hub(
            Storage(self.folder, lfs_above=lfs_above),
            user=user,
            page_size=page_size,
            part_size=part_size,
            url_lifetime=url_lifetime,
        )
        self.token = self._hub.add_account(Account(user, "write", everywhere=True))
        self.read_token = self._hub.add_account(Account(user, "read", everywhere=True))
        self.stranger_token = self._hub.add_account(Account("stranger", "write", everywhere=False))
        self._server = HttpServer(self._hub, port)
        number = self._server.server_address[1]
        self.endpoint = self._hub.endpoint = f"http://127.0.0.1:{number}"
        # Another host than the endpoint, so that clients keep their token to themselves.
        self._hub.cdn = f"http://localhost:{number}"
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.05,), daemon=True)

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop()
        if kind is None:  # what went wrong in the test itself is worth more
            self._complain()

    def __repr__(self) -> str:
        return f"HubServer({self.endpoint!r})"

    def close(self) -> None:
        """Stop. A request that made the server itself fail is an error here."""
        self._stop()
        self._complain()

    def _stop(self) -> None:
        self._server.stop()
        self._thread.join()

    def _complain(self) -> None:
        if self._server.unexpected:
            raise self._server.unexpected[0]

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment before it imports the client.

        Xet is switched off: the client then uploads by LFS and downloads by plain HTTP. Caches
        and tokens are kept in the server's folder, away from the user's.
        """
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": self.token,
            "HF_HOME": str(self.folder / "client"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    # Looking into it

    @property
    def log(self) -> list[LoggedRequest]:
        """Every request since the start or the last ``reset_log``, save the client's daily one."""
        return [entry for entry in list(self._server.log) if entry.route != "registry"]

    @property
    def requests(self) -> int:
        """How many requests the log holds."""
        return len(self.log)

    def reset_log(self) -> None:
        """Forget the requests so far."""
        self._server.log.clear()

    def exists(self, repo: str, *, repo_type: RepoType = "dataset") -> bool:
        """Whether there is such a repository."""
        return (repo_type, repo) in self._hub.storage.repos

    def files(
        self, repo: str, revision: str = MAIN, *, repo_type: RepoType = "dataset"
    ) -> dict[str, StoredFile]:
        """The files of a revision: ``sha256``, ``size``, ``lfs`` and git's ``blob`` by path."""
        with self._hub.storage.lock:
            return dict(self._repo(repo, repo_type).find(revision).files)

    def read(
        self, repo: str, path: str, revision: str = MAIN, *, repo_type: RepoType = "dataset"
    ) -> bytes:
        """A file's bytes."""
        return self._hub.storage.read(self.files(repo, revision, repo_type=repo_type)[path])

    def commits(
        self, repo: str, revision: str = MAIN, *, repo_type: RepoType = "dataset"
    ) -> list[Commit]:
        """Commits of a revision, newest first; the last is the Hub's own "initial commit"."""
        with self._hub.storage.lock:
            return list(self._repo(repo, repo_type).history(revision))

    def refs(self, repo: str, *, repo_type: RepoType = "dataset") -> dict[str, dict[str, str]]:
        """``{"branches": {name: oid}, "tags": {name: oid}, "others": {ref: oid}}``."""
        with self._hub.storage.lock:
            found = self._repo(repo, repo_type)
            return {
                "branches": dict(found.branches),
                "tags": dict(found.tags),
                "others": dict(found.references),
            }

    # Putting things there

    def seed(
        self,
        repo: str,
        folder: Path | str | None = None,
        *,
        revision: str = MAIN,
        tag: str | None = None,
        private: bool = False,
        repo_type: RepoType = "dataset",
        message: str = "Seed",
    ) -> str:
        """Make a branch hold exactly a folder's files, without a client; the commit's oid.

        The repository and the branch are made where they are missing; a tag is moved. Without a
        folder only the repository is made.
        """
        storage = self._hub.storage
        with storage.lock:
            found = storage.repos.get((repo_type, repo))
            if found is None:
                found = storage.create(repo_type, repo, private=private, author=self.user)
            if revision not in found.branches:
                found.branches[revision] = found.branches[MAIN]
            head = found.find(revision)
            if folder is not None:
                head = self._put(found, Path(folder), revision, message)
            if tag is not None:
                found.tags[tag] = head.oid
            storage.save(found)
            return head.oid

    def _put(self, repo: Repo, folder: Path, branch: str, message: str) -> Commit:
        if not folder.is_dir():
            raise ArgumentError("There is no such folder to seed from", file=folder)
        storage = self._hub.storage
        head = repo.find(branch)
        attributes = storage.attributes(head)
        gone = head.files.keys() - {".gitattributes"}
        changes: dict[str, StoredFile | None] = dict.fromkeys(gone)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                changes[name] = storage.store(name, path, attributes)
        return storage.commit(repo, changes, branch=branch, title=message, author=self.user)

    def commit(
        self,
        repo: str,
        changes: Mapping[str, bytes | None],
        *,
        revision: str = MAIN,
        message: str = "Somebody else's commit",
        repo_type: RepoType = "dataset",
    ) -> str:
        """A commit by another client: contents by path, None deletes. Its oid."""
        storage = self._hub.storage
        with storage.lock:
            found = self._repo(repo, repo_type)
            attributes = storage.attributes(found.find(revision))
            stored = {
                path: None if content is None else storage.store(path, content, attributes)
                for path, content in changes.items()
            }
            made = storage.commit(
                found, stored, branch=revision, title=message, author="somebody-else"
            )
            return made.oid

    def set_private(self, repo: str, private: bool, *, repo_type: RepoType = "dataset") -> None:
        """Hide a repository, or show it."""
        with self._hub.storage.lock:
            found = self._repo(repo, repo_type)
            found.private = private
            self._hub.storage.save(found)

    def _repo(self, repo: str, repo_type: str) -> Repo:
        try:
            return self._hub.storage.repos[repo_type, repo]
        except KeyError:
            raise ArgumentError(f"The test server has no {repo_type} {repo!r}") from None

    # Breaking it

    def fail_next(
        self,
        count: int = 1,
        *,
        status: int = 429,
        retry_after: float | None = None,
        on: str | None = None,
    ) -> None:
        """Answer the next requests with an error.

        ``on`` is a route (``commit``, ``resolve``, ``preupload``, ``lfs``, ``cdn``, ``tree``, ...)
        or else a part of ``"METHOD /path"``; None means every request.
        """
        self._server.faults.fail_next(count, status=status, retry_after=retry_after, on=on)

    def cut_upload(self, after_bytes: int, *, count: int = 1, on: str = "lfs-upload") -> None:
        """Reset the connection of the next uploads after so many bytes of longer bodies."""
        self._server.faults.cut("up", count, after_bytes=after_bytes, on=on)

    def cut_download(self, after_bytes: int, *, count: int = 1, on: str = "cdn") -> None:
        """Close the connection of the next downloads after so many bytes of longer bodies."""
        self._server.faults.cut("down", count, after_bytes=after_bytes, on=on)

    def race(self, repo: str, callback: Callable[[], object] | None = None) -> None:
        """Let another client commit between a client's look and its commit.

        ``callback`` runs when the next commit to the repository arrives; by default it commits
        a file ``raced.txt``.
        """
        self._repo(repo, "dataset")
        commit = callback or (lambda: self.commit(repo, {"raced.txt": b"first\n"}))
        self._server.faults.race(repo, commit)

    def hold(self, on: str) -> Held:
        """Keep the next request of a kind waiting: to kill a client at a known point.

        ``with hub.hold("commit") as held: held.wait(); process.kill(); held.drop()``. A request
        that is dropped never happened; one that is released, or still held when the ``with``
        ends, does what it came for, even if its client is dead by then.
        """
        return self._server.faults.hold(on)

    def expire_urls(self) -> None:
        """Make every signed URL handed out so far answer 403."""
        self._hub.expire_urls()

    def calm(self) -> None:
        """Drop all faults that are planned, and release what is held."""
        self._server.faults.clear()
