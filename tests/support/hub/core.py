"""What every route needs: the storage, who is asking, and URLs that are signed for a while."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from urllib.parse import urlencode

from support.hub.answers import Refusal, Request
from support.hub.repos import Repo
from support.hub.storage import Storage, missing_repo

KINDS = {"datasets": "dataset", "models": "model"}


@dataclass(frozen=True)
class Account:
    """Who a token belongs to. ``everywhere``: may see and (by role) write every namespace."""

    name: str
    role: str  # "write" or "read"
    everywhere: bool


class Hub:
    """The state behind the routes."""

    def __init__(
        self, storage: Storage, *, user: str, page_size: int, part_size: int, url_lifetime: float
    ) -> None:
        self.storage = storage
        self.user = user
        self.page_size = page_size
        self.part_size = part_size
        self.url_lifetime = url_lifetime
        self.endpoint = ""  # known when the socket is bound
        self.cdn = ""
        self.moved: dict[tuple[str, str], str] = {}
        self.accounts: dict[str, Account] = {}
        self._secret = secrets.token_bytes(32)

    # Who is asking

    def add_account(self, account: Account) -> str:
        """A new token for an account."""
        token = f"hf_{secrets.token_hex(17)}"
        self.accounts[token] = account
        return token

    def caller(self, request: Request) -> Account | None:
        """Whose token came along; a wrong token is refused even where none is needed."""
        token = request.token
        if token is None:
            return None
        if token not in self.accounts:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.accounts[token]

    def signed_in(self, request: Request) -> Account:
        """The caller, which must not be anonymous."""
        caller = self.caller(request)
        if caller is None:
            raise Refusal(401, "Invalid username or password.")
        return caller

    def may_write(self, request: Request, namespace: str) -> Account:
        """The caller, which must be allowed to write into a namespace."""
        caller = self.signed_in(request)
        if caller.role != "write" or not (caller.everywhere or caller.name == namespace):
            raise Refusal(403, f"Forbidden: you may not write under the namespace {namespace}")
        return caller

    def readable(self, request: Request, kind: str, repo_id: str) -> Repo:
        """A repository that the caller may see."""
        caller = self.caller(request)
        repo = self.storage.repos.get((kind, repo_id))
        if repo is None or (repo.private and not self._sees(caller, repo.id)):
            raise missing_repo(signed_in=caller is not None)
        return repo

    def writable(self, request: Request, kind: str, repo_id: str) -> tuple[Repo, Account]:
        """A repository that the caller may change, and the caller."""
        repo = self.readable(request, kind, repo_id)
        return repo, self.may_write(request, repo_id.split("/")[0])

    def _sees(self, caller: Account | None, repo_id: str) -> bool:
        if caller is None:
            return False
        return caller.everywhere or caller.name == repo_id.split("/")[0]

    # Signed URLs

    def sign(self, path: str) -> str:
        """A URL on the content host that needs no token, until it expires."""
        expires = str(int(time.time() + self.url_lifetime))
        query = urlencode({"Expires": expires, "Signature": self._signature(path, expires)})
        return f"{self.cdn}{path}?{query}"

    def check_signature(self, request: Request) -> None:
        """Refuse a URL that was not signed here, or whose time is over."""
        expires = request.query.get("Expires", ["0"])[0]
        signature = request.query.get("Signature", [""])[0]
        wrong = not hmac.compare_digest(signature, self._signature(request.path, expires))
        if wrong or float(expires) < time.time():
            raise Refusal(403, "Access Denied: the URL is not signed or has expired")

    def expire_urls(self) -> None:
        """Make every URL signed so far invalid."""
        self._secret = secrets.token_bytes(32)

    def _signature(self, path: str, expires: str) -> str:
        return hmac.new(self._secret, f"{path} {expires}".encode(), hashlib.sha256).hexdigest()
