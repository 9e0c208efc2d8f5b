"""The location of Lance tables: a folder, or an object store.

Lance itself reads object stores, with the credentials of the environment: ``AWS_ACCESS_KEY_ID`` and
its kin, a profile, a machine's role, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_*``. They
are never copied here. Options that a user gives for one table are known to this process's own
workers, and are shown nowhere: not in a repr, an error or an environment; secrets not in a pickle.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from demoreel.errors import ArgumentError, nearest
from demoreel.storage.secrets import keep_secrets, knows_secrets, may_travel, recall_secrets
from demoreel.storage.store import SCHEMES

ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Where the environment names another S3 than Amazon's; the first counts."""

_ENDPOINT_OPTIONS = ("aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint")
_CLOUD = re.compile(r"AWS_|AZURE_|GOOGLE_|HF_", re.IGNORECASE)
_SECRET = re.compile(r"key|secret|token|password|credential|sas|service_account", re.IGNORECASE)
_PLAIN = re.compile(
    r"(aws_|azure_|google_|hf_|storage_)*(default_)?(region|endpoint(_url(_s3)?)?|allow_http|revision"
    r"|bucket(_name)?|container_name|account_name|virtual_hosted_style_request|skip_signature"
    r"|unsigned_payload|checksum_algorithm|s3_express|use_emulator|\w*timeout|\w*retries)"
)
"""Options that hold no secret; all others are taken for one."""
_OPTIONS = {
    "s3": "access_key_id allow_express allow_http_s3 bucket bucket_name checksum_algorithm "
    "conditional_put container_authorization_token_file container_credentials_full_uri "
    "container_credentials_relative_uri copy_if_not_exists default_region disable_bulk_delete "
    "disable_tagging endpoint endpoint_url endpoint_url_s3 imdsv1_fallback metadata_endpoint "
    "region request_payer role_arn role_session_name s3_express secret_access_key "
    "server_side_encryption session_token skip_signature sse_bucket_key_enabled "
    "sse_customer_key_base64 sse_kms_key_id sts_endpoint endpoint_url_sts token unsigned_payload "
    "virtual_hosted_style_request web_identity_token_file provider_name",
    "gs": "application_credentials base_url bearer_token bucket bucket_name service_account "
    "service_account_key service_account_path skip_signature storage_token token",
    "az": "access_key account_key account_name authority_host authority_id authority_url client_id "
    "client_secret container_name credential_type disable_tagging encryption_key endpoint "
    "fabric_cluster_identifier fabric_session_token fabric_token_service_url fabric_workload_host "
    "federated_token_file identity_endpoint master_key msi_endpoint msi_resource_id object_id "
    "sas_key sas_token skip_signature storage_access_key storage_account_key storage_account_name "
    "storage_authority_id storage_client_id storage_client_secret storage_sas_key "
    "storage_sas_token storage_tenant_id storage_token storage_use_emulator tenant_id token "
    "use_azure_cli use_emulator use_fabric_endpoint",
}
"""What the stores can be told, without the prefixes that each name may have."""

_CLIENT_OPTIONS = (
    "allow_http allow_invalid_certificates client_max_retries client_retry_timeout "
    "connect_timeout default_content_type download_retry_count http1_only http2_only "
    "http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle "
    "pool_idle_timeout pool_max_idle_per_host proxy_ca_certificate proxy_excludes proxy_url "
    "randomize_addresses read_timeout request_timeout root_certificate timeout user_agent"
)
_PREFIXES = {"s3": ("aws_",), "gs": ("google_",), "az": ("azure_storage_", "azure_")}
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
        given: What the user says about the store, as Lance calls it.
        missing: The name of secrets that this process was not told of.
    """

    uri: str
    given: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    missing: str | None = field(default=None, repr=False)

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """What the user says about the store."""
        if self.missing is None:
            return self.given
        return tuple(sorted((*self.given, *recall_secrets(self.missing).items())))

    def __post_init__(self) -> None:
        # Before a process is forked that may be told of this place.
        if self.missing is None and self.secrets:
            keep_secrets(self.secrets)

    @property
    def secrets(self) -> dict[str, str]:
        """The options that may hold a secret."""
        return {name: value for name, value in self.options if _may_be_secret(name, value)}

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
        """The folder that it is in."""
        return RemotePlace(self.uri.rsplit("/", 1)[0], self.given, self.missing)

    @property
    def is_table(self) -> bool:
        """Whether it is named like a table."""
        return self.name.endswith(".lance")

    def __truediv__(self, name: str) -> RemotePlace:
        return RemotePlace(f"{self.uri}/{name}", self.given, self.missing)

    def __str__(self) -> str:
        return self.uri

    def __reduce__(self) -> tuple[object, ...]:
        if self.missing is not None:
            return (_from_pickle, (self.uri, self.given, self.missing))
        secret = self.secrets
        plain = tuple(item for item in self.options if item[0] not in secret)
        name = keep_secrets(secret) if secret else None
        return (_from_pickle, (self.uri, plain, name, secret if may_travel() else None))

    def storage_options(self) -> dict[str, str] | None:
        """Return what Lance is to be told: the user's options, and whether http will do."""
        options = dict(self.options)
        given = [options[name] for name in _ENDPOINT_OPTIONS if name in options]
        endpoints = given or [os.environ[name] for name in ENDPOINT_VARIABLES if name in os.environ]
        if self.uri.startswith("s3:") and endpoints and endpoints[0].startswith("http://"):
            options.setdefault("allow_http", "true")
        return options or None


def _may_be_secret(name: str, value: str) -> bool:
    return _PLAIN.fullmatch(name) is None or "@" in value  # an address with a password


def _from_pickle(
    uri: str,
    plain: tuple[tuple[str, str], ...],
    name: str | None,
    carried: dict[str, str] | None = None,
) -> RemotePlace:
    if name is not None and carried is not None:
        keep_secrets(carried, name)
    if name is None or not knows_secrets(name):
        # Said when the store is asked: a pool whose worker fails to unpickle its work is broken.
        return RemotePlace(uri, plain, name)
    return RemotePlace(uri, tuple(sorted((*plain, *recall_secrets(name).items()))))


Where = str | RemotePlace
"""A table on this machine, by its path, or one in an object store."""


def remote_place(uri: str, storage_options: Mapping[str, Any] | None = None) -> RemotePlace:
    """Return a place in an object store.

    Args:
        uri: ``s3://bucket/path/NAME.lance``, or ``gs://`` or ``az://``.
        storage_options: What Lance is told of the store beyond what the environment says, e.g.
            ``{"aws_region": "eu-west-1"}``.
    """
    parts = urlsplit(uri)
    if parts.username or parts.password or parts.query or parts.fragment or not parts.netloc:
        raise ArgumentError(
            f"A {parts.scheme}:// URI names a bucket and a path in it, and nothing else.",
            hint="credentials belong in the environment, or in storage_options=",
        )
    options = {}
    known = _known_options(parts.scheme)
    for name, value in (storage_options or {}).items():
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(name, str) or not isinstance(value, str | int | float):
            raise ArgumentError(f"storage_options[{name!r}] must be text.")
        if name.lower() not in known:
            raise ArgumentError(
                f"There is no storage option {name[:60]!r} for {parts.scheme}://.",
                hint=nearest(name.lower()[:60], known),
            )
        options[name.lower()] = str(value)
    return RemotePlace(uri.rstrip("/"), tuple(sorted(options.items())))


def _known_options(scheme: str) -> list[str]:
    """Return the names of the options of a kind of store, with and without their prefixes."""
    own = _OPTIONS.get(scheme, "").split()
    prefixed = [prefix + name for prefix in _PREFIXES.get(scheme, ()) for name in own]
    return [*prefixed, *own, *_CLIENT_OPTIONS.split()]


def is_object_store(uri: str) -> bool:
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
    found = {value for name, value in environment if _SECRET.search(name)}
    found |= {value for value in place.secrets.values() if value not in ("true", "false")}
    return {value for value in found if len(value) >= _SHORTEST_SECRET}
