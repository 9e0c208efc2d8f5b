"""Names, check sums, the environment and log lines; what needs a server is in tests/hub."""

from __future__ import annotations

import hashlib
import logging
from types import SimpleNamespace

import pytest
from huggingface_hub.hf_api import RepoFile

from demoreel.errors import StoreError, UnsafePathError
from demoreel.storage.hub_calls import (
    Hub,
    HubFile,
    HubUnreachableError,
    content_digest,
    hub_endpoint,
    is_offline,
    refuse_unsafe,
)
from demoreel.storage.secrets import hide_signatures


@pytest.mark.parametrize("path", ["meta/info.json", "a/..b/c..", "name with spaces", "ß/日本.mp4"])
def test_plain_names(path):
    refuse_unsafe(path, "me/task")


@pytest.mark.parametrize(
    "path",
    ["", "/a", "a//b", "a/", ".", "..", "a/../b", "./a", "a\\b", "C:/a", "a\0b", "a\nb", "a" * 256],
)
def test_names_that_lead_elsewhere(path):
    with pytest.raises(UnsafePathError):
        refuse_unsafe(path, "me/task")


def test_check_sums(tmp_path):
    place = tmp_path / "hello"
    place.write_bytes(b"hello\n")
    # as `git hash-object` says
    assert content_digest(place, sha256=False) == "ce013625030ba8dba906f756967f9e9ca394464a"
    digest = hashlib.sha256(b"hello\n").hexdigest()
    assert content_digest(place, sha256=True) == digest
    assert HubFile("hello", 6, sha256=digest).is_content_of(place)
    assert not HubFile("hello", 7, sha256=digest).is_content_of(place)
    assert not HubFile("hello", 6, git_sha1=digest).is_content_of(place)
    assert not HubFile("hello", 6, sha256=digest).is_content_of(tmp_path / "nothing")


def test_the_environment_counts_when_something_is_asked(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9/")
    assert hub_endpoint() == "http://127.0.0.1:9"
    monkeypatch.delenv("HF_ENDPOINT")
    assert hub_endpoint() is None
    for said, offline in [("1", True), ("true", True), ("0", False), ("", False)]:
        monkeypatch.setenv("HF_HUB_OFFLINE", said)
        assert is_offline() is offline
    monkeypatch.setenv("HF_HUB_OFFLINE", "YES")
    with pytest.raises(HubUnreachableError, match="HF_HUB_OFFLINE"):
        Hub().refs("me/task")


def test_a_token_is_not_shown():
    assert "hf_secret" not in repr(Hub("hf_secret"))


@pytest.mark.parametrize("name", ["huggingface_hub.file_download", "httpcore2.http11"])
def test_signed_addresses_are_logged_without_their_signature(name):
    hide_signatures()
    seen = []
    logger = logging.getLogger(name)
    listener = logging.Handler()
    listener.emit = lambda record: seen.append(record.getMessage())
    logger.addHandler(listener)
    try:
        address = "https://cdn/x/y?name*=UTF-8''a.mp4&Signature=abc:def"
        logger.warning("Error while downloading from %s: %s\nTrying again...", address, "broke off")
    finally:
        logger.removeHandler(listener)
    assert seen == ["Error while downloading from https://cdn/x/y?... broke off\nTrying again..."]


class _Api:
    """Answers of a server that cannot be trusted."""

    def __init__(self, commit="0" * 40, path="meta/info.json", size=1):
        self.commit, self.path, self.size = commit, path, size

    def list_repo_refs(self, *_, **__):
        ref = SimpleNamespace(name="main", target_commit=self.commit)
        return SimpleNamespace(tags=[], branches=[ref])

    def repo_info(self, *_, **__):
        return SimpleNamespace(sha=self.commit)

    def list_repo_tree(self, *_, **__):
        names = ["meta/info.json", self.path]
        return [RepoFile(path=name, size=self.size, oid="0" * 40) for name in names]


@pytest.mark.parametrize("commit", ["../../../x", "", None, "abc", "0" * 39 + "/", "0" * 40 + "\n"])
def test_a_commit_is_a_name_that_folders_may_have(monkeypatch, commit):
    monkeypatch.setattr("huggingface_hub.HfApi", lambda **_: _Api(commit))
    with pytest.raises(StoreError, match="commit that is none"):
        Hub().refs("me/x")
    with pytest.raises(StoreError, match="commit that is none"):
        Hub().commit_of("me/x", "main")


def test_listings_that_no_disk_can_hold(monkeypatch):
    def files(**changes):
        monkeypatch.setattr("huggingface_hub.HfApi", lambda **_: _Api(**changes))
        return Hub().files("me/x", "0" * 40)

    assert set(files(path="a")) == {"a", "meta/info.json"}
    for size in (-1, 1 << 63, "1", None):
        with pytest.raises(StoreError, match="with the size"):
            files(path="a", size=size)
    with pytest.raises(StoreError, match="twice"):
        files()
    for path in ("meta", "meta/info.json/x", "../x", "a\nb"):
        with pytest.raises(UnsafePathError):
            files(path=path)
