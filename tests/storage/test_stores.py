"""Every store passes the same tests."""

from __future__ import annotations

import os
import uuid

import pytest

from demoreel.errors import ArgumentError
from demoreel.storage.local import LocalStore
from demoreel.storage.store import open_store
from demoreel.testing import StoreTests
from support.hub_server import HubServer


class TestLocal(StoreTests):
    @pytest.fixture
    def store(self, tmp_path):
        return open_store(tmp_path / "store")

    def test_pipes_and_folders_are_no_files(self, store, tmp_path):
        (tmp_path / "store" / "folder").mkdir(parents=True)
        os.mkfifo(tmp_path / "store" / "pipe")
        for name in ("folder", "pipe"):
            with pytest.raises(OSError, match=r"directory|regular|no such"):
                store.stat(name)
            with pytest.raises(OSError, match=r"directory|regular"):
                store.file(name)


class TestS3(StoreTests):
    @pytest.fixture
    def store(self, s3, monkeypatch):
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        return open_store(s3.uri(f"stores/{uuid.uuid4().hex}"))


class TestHub(StoreTests):
    @pytest.fixture
    def store(self, tmp_path, monkeypatch):
        with HubServer(tmp_path / "hub") as server:
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
            # Another test may have imported the client before.
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
            server.seed("me/x")
            yield open_store("hf://datasets/me/x@main/folder")


def test_what_names_a_store(tmp_path):
    assert isinstance(open_store(tmp_path), LocalStore)
    assert open_store(f"file://{tmp_path}").uri == str(tmp_path)
    with pytest.raises(ArgumentError, match="not read from"):
        open_store("ftp://host/x")
