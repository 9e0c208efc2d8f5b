"""Names, check sums, the environment and log lines; what needs a server is in tests/hub."""

from __future__ import annotations

import hashlib
import logging

import pytest

from demoreel.errors import UnsafePathError
from demoreel.storage.hub_calls import (
    Hub,
    HubFile,
    HubUnreachableError,
    content_digest,
    hub_endpoint,
    is_offline,
    refuse_unsafe,
)
from demoreel.storage.quiet_logs import hide_signatures


@pytest.mark.parametrize("path", ["meta/info.json", "a/..b/c..", "name with spaces", "ß/日本.mp4"])
def test_plain_names(path):
    refuse_unsafe(path, "me/task")


@pytest.mark.parametrize(
    "path", ["", "/a", "a//b", "a/", ".", "..", "a/../b", "./a", "a\\b", "C:/a", "a\0b"]
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


def test_signed_addresses_are_logged_without_their_signature():
    hide_signatures()
    seen = []
    logger = logging.getLogger("huggingface_hub.file_download")
    listener = logging.Handler()
    listener.emit = lambda record: seen.append(record.getMessage())
    logger.addHandler(listener)
    try:
        address = "https://cdn/x/y?name*=UTF-8''a.mp4&Signature=abc:def"
        logger.warning("Error while downloading from %s: %s\nTrying again...", address, "broke off")
    finally:
        logger.removeHandler(listener)
    assert seen == ["Error while downloading from https://cdn/x/y broke off\nTrying again..."]
