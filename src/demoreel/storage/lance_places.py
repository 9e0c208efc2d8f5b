"""Where Lance tables lie: in a folder, or in an object store.

Lance itself reads object stores, with the credentials of the environment: ``AWS_ACCESS_KEY_ID`` and
its kin, a profile, a machine's role, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_*``. They
are never copied here. Options that a user gives for one table are known to other processes of the
family, and are shown nowhere: not in a repr, not in an error; secrets not in a pickle, either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from demoreel.errors import ArgumentError
from demoreel.storage.secrets import keep_secrets, recall_secrets

SCHEMES = ("s3", "gs", "az")
"""The object stores that tables are read from."""

ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Where the environment names another S3 than Amazon's; the first counts."""

_ENDPOINT_OPTIONS = ("aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint")
_CLOUD = re.compile(r"AWS_|AZURE_|GOOGLE_", re.IGNORECASE)
_SECRET = re.compile(r"key|secret|token|password|credential|sas|service_account", re.IGNORECASE)
_STATUS = re.compile(r"status code: (\d{3}(?: [A-Z]\w*)*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_QUERY = re.compile(r"(https?://[^\s?<>]*)\?[^\s<>]*")
_BODY = re.compile(r"<\?xml.*|<Error>.*", re.DOTALL)
_SHORTEST_SECRET = 4  # shorter ones are words that would be struck out everywhere


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """A Lance table in an object store, or a folder of tables; made by ``remote_place``.

    Attributes:
        uri: Where it is, without credentials.
        options: What the user says about the store, as Lance calls it.
    """

    uri: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self._secret:  # before any process is started that may be told of this place
            keep_secrets(self._secret)

    @property
    def _secret(self) -> dict[str, str]:
        return {name: value for name, value in self.options if _SECRET.search(name)}

    @property
    def name(self) -> str:
        """The last part of the URI."""
        return self.uri.rsplit("/", 1)[1]

    @property
    def stem(self) -> str:
        """The name without ``.lance``."""
        return self.name.removesuffix(".lance")

    @property
    def parent(self) -> RemotePlace:
        """The folder that it lies in."""
        return RemotePlace(self.uri.rsplit("/", 1)[0], self.options)

    @property
    def is_table(self) -> bool:
        """Whether it is named like a table."""
        return self.name.endswith(".lance")

    def __truediv__(self, name: str) -> RemotePlace:
        return RemotePlace(f"{self.uri}/{name}", self.options)

    def __str__(self) -> str:
        return self.uri

    def __reduce__(self) -> tuple[object, ...]:
        plain = tuple(item for item in self.options if not _SECRET.search(item[0]))
        return (_from_pickle, (self.uri, plain, self.share_secrets()))

    def share_secrets(self) -> str | None:
        """Let processes that are started from now on know the secrets; return their name."""
        secret = {name: value for name, value in self.options if _SECRET.search(name)}
        return keep_secrets(secret) if secret else None

    def storage_options(self) -> dict[str, str] | None:
        """Return what Lance is to be told: the user's options, and whether http will do."""
        options = dict(self.options)
        given = [options[name] for name in _ENDPOINT_OPTIONS if name in options]
        endpoints = given or [os.environ[name] for name in ENDPOINT_VARIABLES if name in os.environ]
        if self.uri.startswith("s3:") and endpoints and endpoints[0].startswith("http://"):
            options.setdefault("allow_http", "true")
        return options or None


def _from_pickle(uri: str, plain: tuple[tuple[str, str], ...], secrets: str | None) -> RemotePlace:
    known = recall_secrets(secrets) if secrets is not None else {}
    return RemotePlace(uri, tuple(sorted((*plain, *known.items()))))


Where = str | RemotePlace
"""A table on this machine, by its path, or one in an object store."""


def remote_place(uri: str, storage_options: Mapping[str, Any] | None = None) -> RemotePlace:
    """Return a place in an object store.

    Args:
        uri: ``s3://bucket/path/NAME.lance``, or ``gs://`` or ``az://``.
        storage_options: What Lance is told of the store beyond what the environment says, e.g.
            ``{"aws_region": "eu-west-1"}``.

    Raises:
        ArgumentError: The URI holds credentials or names no bucket, or an option is no text.
    """
    parts = urlsplit(uri)
    if parts.username or parts.password or parts.query or parts.fragment or not parts.netloc:
        raise ArgumentError(
            f"A {parts.scheme}:// URI names a bucket and a path in it, and nothing else.",
            hint="credentials belong in the environment, or in storage_options=",
        )
    options = {}
    for name, value in (storage_options or {}).items():
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(name, str) or not isinstance(value, str | int | float):
            raise ArgumentError(f"storage_options[{name!r}] must be text.")
        options[name.lower()] = str(value)
    place = RemotePlace(uri.rstrip("/"), tuple(sorted(options.items())))
    place.share_secrets()
    return place


def is_remote(uri: str) -> bool:
    """Whether a text is the URI of something in an object store that can be read."""
    return urlsplit(uri).scheme in SCHEMES and "://" in uri


def said_of_store(text: str, place: RemotePlace) -> str:
    """Return what an object store's error says, without what must not be shown.

    An answer of the store is cut down to its status and code: its body may repeat the key and the
    signature of the request.
    """
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is not None:
        text = f"the store answered {status[1]}" + (f", {code[1]}" if code is not None else "")
    else:
        text = _QUERY.sub(r"\1", _BODY.sub("", text))
    for secret in sorted(_secrets(place), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(place: RemotePlace) -> set[str]:
    environment = ((name, value) for name, value in os.environ.items() if _CLOUD.match(name))
    found = {value for name, value in (*place.options, *environment) if _SECRET.search(name)}
    return {value for value in found if len(value) >= _SHORTEST_SECRET}
