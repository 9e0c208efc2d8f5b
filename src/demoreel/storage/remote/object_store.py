"""Object stores: lists objects, and signs links to read them.

obstore speaks to S3, Google and Azure, and finds their credentials: in the environment, in a
machine's role, in ``GOOGLE_APPLICATION_CREDENTIALS``. It runs on threads of its own, so calls are
functions of plain values and made where that is safe: by ``ask``. Ranges are not read through it
but by ``transfer.py``, from links that are signed here.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from datetime import timedelta
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from demoreel.errors import AccessError, DatasetNotFoundError, StoreError, TargetExistsError
from demoreel.storage.helper_process import SafeProcess
from demoreel.storage.names import EndlessListing, Listing
from demoreel.storage.place import ENDPOINT_VARIABLES, RemotePlace, said_of_store
from demoreel.storage.remote.files import RemoteStore
from demoreel.storage.remote.transfer import Link, changed
from demoreel.storage.store import FileInfo
from demoreel.storage.threads import transfer

_MOST_STORES = 16
_PAGE = 1000
_FOLDERS_S = 60.0
_ENVIRONMENT = re.compile(r"AWS_|AZURE_|GOOGLE_|(HTTPS?|ALL|NO)_PROXY$", re.IGNORECASE)
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_BEFORE_A_PROFILE = {
    "aws_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "aws_endpoint": ENDPOINT_VARIABLES,
}
_GOOGLE_KEY_FILES = ("service_account", "service_account_path", "application_credentials")
PART_BYTES = 8 << 20
"""Objects that are larger are sent in parts of this size."""


class StoreFailure(Exception):
    """What a store answered, in one line, without credentials.

    Attributes:
        kind: ``missing``, ``denied``, ``exists``, ``unsigned`` (no link can be signed), ``many``
            (more files than ``LISTED_FILES``) or ``other``.
    """

    def __init__(self, what: str, kind: str = "other") -> None:
        super().__init__(what, kind)
        self.kind = kind

    def __str__(self) -> str:
        return str(self.args[0])


def folders(place: RemotePlace) -> list[str]:
    """Return the names of what looks like a folder directly below a place; one request."""
    import obstore

    with _Failures(place):
        found = _in_time(lambda: obstore.list_with_delimiter_async(_store(place)))
    return [str(prefix).strip("/") for prefix in found["common_prefixes"]]


def files(place: RemotePlace, under: str, most_pages: int | None) -> tuple[list[FileInfo], bool]:
    """Return the objects whose names begin with ``under``, and whether these are all.

    Cost: a request for every thousand, and no more than ``most_pages``.
    """
    import obstore

    found: list[FileInfo] = []
    listing = Listing()
    with _Failures(place):
        pages = obstore.list(_store(place), prefix=under or None, chunk_size=_PAGE)
        for number, page in enumerate(pages, start=1):
            for m in page:
                found.append(FileInfo(str(m["path"]), int(m["size"]), m["e_tag"]))
                listing.add(found[-1].name)
            if number == most_pages and len(page) == _PAGE:  # another page would be a request
                return found, False
    return found, True


def _in_time(call: Callable[[], Any]) -> Any:
    """Return what an asynchronous call of obstore gives, unless it takes for ever."""
    import asyncio

    found: list[Any] = []

    async def answered() -> Any:
        return await asyncio.wait_for(call(), _FOLDERS_S)

    def ask() -> None:
        try:
            found.append(asyncio.run(answered()))
        except BaseException as error:
            found.append(error)

    asking = threading.Thread(target=ask)  # this one may have a loop of its own
    asking.start()
    asking.join()
    if isinstance(found[0], TimeoutError):
        raise StoreFailure(f"it did not list the folders within {_FOLDERS_S:g} s")
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def look(place: RemotePlace, name: str) -> FileInfo:
    """Return an object's size and etag; one request."""
    import obstore

    with _Failures(place):
        meta = obstore.head(_store(place), name)
    return FileInfo(name, int(meta["size"]), meta["e_tag"])


def sign(place: RemotePlace, name: str, seconds: int) -> str:
    """Return a link that reads an object for so long; no request, but for credentials."""
    import obstore

    if place.uri.startswith("gs:") and not _has_google_key(dict(place.options)):
        raise StoreFailure("there is no service account's key", "unsigned")
    try:
        with _Failures(place):
            return obstore.sign(_store(place), "GET", name, timedelta(seconds=seconds))
    except StoreFailure as failure:
        raise StoreFailure(str(failure), "unsigned") from failure
    except TypeError as error:  # a store without signatures
        raise StoreFailure(str(error), "unsigned") from error


def read(place: RemotePlace, name: str, begin: int, length: int, etag: str | None) -> bytes:
    """Return a range of an object, where no link can be signed."""
    import obstore

    with _Failures(place):
        options: Any = {"range": (begin, begin + length)}
        if etag is not None:
            options["if_match"] = etag
        return bytes(obstore.get(_store(place), name, options=options).bytes())


def put(place: RemotePlace, name: str, path: str, new: bool = False) -> None:
    """Send a file; in parts if it is large. One that is there is replaced, unless ``new``."""
    import obstore

    with _Failures(place), open(path, "rb") as file:
        if new:
            obstore.put(_store(place), name, file, mode="create", use_multipart=False)
        else:
            obstore.put(_store(place), name, file, chunk_size=PART_BYTES)


def delete(place: RemotePlace, names: list[str]) -> None:
    """Remove objects; those that are not there do no harm."""
    import obstore

    with _Failures(place):
        if names:
            obstore.delete(_store(place), names)


def _store(place: RemotePlace) -> Any:
    # Credentials that are put into the environment after a first try must count.
    said = (item for item in os.environ.items() if _ENVIRONMENT.match(item[0]))
    return _store_in(place, tuple(sorted(said)))


@lru_cache(_MOST_STORES)
def _store_in(place: RemotePlace, _environment: tuple[tuple[str, str], ...]) -> Any:
    from obstore.store import from_url

    make: Callable[..., Any] = from_url  # which options there are depends on the store
    options = dict(place.storage_options() or {})
    client: dict[str, Any] = {"timeout": timedelta(seconds=60)}
    provider: Callable[..., Any] | None = None
    if place.uri.startswith("s3:"):
        options, provider = _with_profile(options)
    plain = options.get("aws_endpoint", "").startswith("http://")
    if options.pop("allow_http", "") == "true" or plain:
        client["allow_http"] = True
    return make(
        place.uri,
        config=options,
        client_options=client,
        credential_provider=provider,
    )


def _with_profile(options: dict[str, str]) -> tuple[dict[str, str], Callable[..., Any] | None]:
    """Add what the user's AWS profile says, which obstore does not read itself."""
    profile = os.environ.get("AWS_PROFILE")
    said = _profile(profile or "default")
    for name, variables in _BEFORE_A_PROFILE.items():
        if any(variable in os.environ for variable in variables) or _stands_in(options, name):
            said.pop(name, None)
    known = any("access_key" in name or "skip_signature" in name for name in options)
    if known or "AWS_ACCESS_KEY_ID" in os.environ:
        said = {name: value for name, value in said.items() if name not in _KEYS}
    elif profile is not None and "aws_access_key_id" not in said:
        return _by_boto3({**said, **options}, profile)
    return {**said, **options}, None


def _stands_in(options: dict[str, str], name: str) -> bool:
    return any(option.removeprefix("aws_").startswith(name[4:]) for option in options)


def _by_boto3(
    options: dict[str, str], profile: str | None
) -> tuple[dict[str, str], Callable[..., Any] | None]:
    """Let boto3 find credentials of profiles with roles or single sign-on."""
    try:
        session = import_module("boto3").Session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise StoreFailure(
            f"the AWS profile {profile or 'default'!r} holds no keys; roles and single sign-on "
            "need boto3 (pip install boto3)",
            "denied",
        ) from error
    return options, Boto3CredentialProvider(session(profile_name=profile))


def _profile(name: str) -> dict[str, str]:
    """Return what ``~/.aws`` says of a profile, in obstore's names."""
    found: dict[str, str] = {}
    sources = (
        ("AWS_CONFIG_FILE", "~/.aws/config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name),
    )
    for variable, default, section in sources:
        parser = ConfigParser(interpolation=None)
        try:
            parser.read(Path(os.environ.get(variable) or default).expanduser())
        except (ConfigError, UnicodeDecodeError):
            continue
        if parser.has_section(section):
            found.update(parser.items(section))
    names = {
        "aws_access_key_id": "aws_access_key_id",
        "aws_secret_access_key": "aws_secret_access_key",
        "aws_session_token": "aws_session_token",
        "region": "aws_region",
        "endpoint_url": "aws_endpoint",
    }
    return {ours: found[theirs] for theirs, ours in names.items() if theirs in found}


def _has_google_key(options: Mapping[str, str]) -> bool:
    """Whether a service account's private key is at hand, in options or in the environment.

    Without one Google would be asked to sign: a request for every object, by a right that few
    accounts have. Ranges are then read with the account's own token instead.
    """
    for text in _said("service_account_key", options):
        if _holds_key(text):
            return True
    for name in _GOOGLE_KEY_FILES:
        for path in _said(name, options):
            try:
                text = Path(path).expanduser().read_text()
            except (OSError, ValueError):
                continue
            if _holds_key(text):
                return True
    return False


def _said(name: str, options: Mapping[str, str]) -> list[str]:
    found = (
        options.get(name),
        options.get(f"google_{name}"),
        os.environ.get(f"GOOGLE_{name.upper()}"),
    )
    return [text for text in found if text]


def _holds_key(text: str) -> bool:
    try:
        account = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(account, dict)
        and bool(account.get("private_key"))
        and not account.get("disable_oauth")
    )


class _Failures:
    """Turns what obstore raises into a ``StoreFailure`` that shows no credentials."""

    def __init__(self, place: RemotePlace) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: Any
    ) -> None:
        if error is None or isinstance(error, StoreFailure):
            return
        if isinstance(error, EndlessListing):
            raise StoreFailure(str(error), "many" if error.is_many else "other") from None
        from obstore import exceptions

        if isinstance(error, (FileNotFoundError, exceptions.NotFoundError)):
            raise StoreFailure("there is no such object", "missing") from None
        denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        if isinstance(error, exceptions.BaseError | OSError | ValueError):
            text = said_of_store(str(error), self._place).splitlines()[0]
            which = "denied" if isinstance(error, denied) or " 403" in text else "other"
            if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
                which = "exists"
            # Not from the error itself: tracebacks would show what it says.
            raise StoreFailure(text, which) from None


_process = SafeProcess(
    "obstore",
    {call.__name__: call for call in (folders, files, look, sign, read, put, delete)},
    program="from demoreel.storage.remote.object_store import serve; serve()",
    failure=StoreFailure,
)

ask = _process.ask
"""Call one of these functions, here or where obstore is safe: it refuses to work in a forked child.

Raises ``StoreFailure``.
"""

serve = _process.serve


_LINK_LIVES_S = 3600
_LINK_IS_OLD_S = 3000


class ObjectStore(RemoteStore):
    """Objects below one place."""

    def __init__(self, place: RemotePlace) -> None:
        super().__init__(_LINK_IS_OLD_S)
        self._place = place
        self._signs = True

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self._place}  # links are secrets

    def __setstate__(self, state: dict[str, Any]) -> None:
        ObjectStore.__init__(self, state["place"])

    @property
    def uri(self) -> str:
        """What to call it."""
        return self._place.uri

    @property
    def place(self) -> RemotePlace:
        """Where Lance would look for tables."""
        return self._place

    given = place

    def folders(self) -> Sequence[str]:
        """Return the names of what looks like a folder here; one request."""
        found: Sequence[str] = self._ask("folders")
        return found

    def list(
        self, under: str = "", *, most_pages: int | None = None
    ) -> tuple[Sequence[FileInfo], bool]:
        """Return the objects in a folder here, and whether these are all."""
        found: tuple[Sequence[FileInfo], bool] = self._ask("files", under, most_pages)
        return found

    def _new_link(self, name: str) -> Link | None:
        """Return a signed link; None if these credentials cannot sign one."""
        if not self._signs:
            return None
        try:
            url = ask("sign", self._place, name, _LINK_LIVES_S)
        except StoreFailure as failure:
            if failure.kind != "unsigned":
                raise self._error(failure, name) from None
            self._signs = False
            return None
        link = Link(url)
        self._keep_link(name, link)
        return link

    def moved(self, name: str, link: Link, location: str) -> Link:
        """Refuse: a store that sends us elsewhere is asked in the wrong region."""
        raise StoreError(
            "The store says that the bucket is elsewhere.",
            hint="name its region: AWS_REGION, or storage_options={'aws_region': ...}",
            object=f"{self.uri}/{name}",
        )

    def read_directly(self, name: str, begin: int, length: int, etag: str | None) -> bytes:
        """Return a range without a link."""
        try:
            data: bytes = self._ask("read", name, begin, length, etag)
        except (DatasetNotFoundError, TargetExistsError) as error:
            gone = isinstance(error, DatasetNotFoundError)
            if etag is None:
                raise StoreError("There is no such object.", object=f"{self.uri}/{name}") from None
            how = "it is gone" if gone else "its etag is another"
            raise changed(f"{self.uri}/{name}", how) from None
        return data

    def stat(self, name: str) -> FileInfo:
        """Return an object's size and etag; one request."""
        found: FileInfo = self._ask("look", self._checked(name))
        return found

    def put(self, name: str, path: str | os.PathLike[str], *, new: bool = False) -> None:
        """Send a file; one that is there is replaced, unless it must be new."""
        self._ask("put", self._checked(name), os.fspath(path), new)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; those that are not there do no harm."""
        self._ask("delete", [self._checked(name) for name in names])

    def _ask(self, call: str, *arguments: Any) -> Any:
        asking = partial(ask, call, self._place, *arguments)
        try:
            if threading.current_thread() is threading.main_thread():
                return transfer(asking).result()  # Ctrl-C does not reach obstore itself
            return asking()
        except StoreFailure as failure:
            name = arguments[0] if arguments and isinstance(arguments[0], str) else ""
            raise self._error(failure, name) from None

    def _error(self, failure: StoreFailure, name: str) -> Exception:
        where = f"{self.uri}/{name}" if name else self.uri
        if failure.kind == "denied":
            return AccessError(
                f"The store refuses: {failure}.",
                hint="check the credentials in the environment, or in storage_options=",
                object=where,
            )
        if failure.kind == "missing":
            return DatasetNotFoundError("There is no such object.", object=where)
        if failure.kind == "many":
            return EndlessListing(str(failure), is_many=True).told(uri=where)
        if failure.kind == "exists":
            return TargetExistsError("Another object has come to be there.", object=where)
        return StoreError(
            f"The store does not answer as it should: {failure}.",
            hint="check the URI, the endpoint and the network; if the server's certificate is your "
            "own, SSL_CERT_FILE names a file with it",
            object=where,
        )
