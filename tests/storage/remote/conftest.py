"""A store that is a folder of this machine: what a store promises, without a server."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from demoreel.errors import ObjectChangedError
from demoreel.storage.remote.files import RemoteStore
from demoreel.storage.store import FileInfo


class FolderStore(RemoteStore):
    """Files of a folder, as objects without links.

    Attributes:
        asked: What was asked for, in order.
        lies: Names that the listing has besides.
    """

    place = given = None
    uri = None

    def __init__(self, folder: Path, uri: str = "s3://bucket/folder") -> None:
        super().__init__(60)
        self.folder = folder
        self.uri = uri
        self.asked: list[str] = []
        self.lies: list[FileInfo] = []

    def folders(self) -> list[str]:
        self.asked.append("folders")
        return sorted(place.name for place in self.folder.iterdir() if place.is_dir())

    def list(self, under="", *, most_pages=None):
        self.asked.append(under)
        found = [place for place in (self.folder / under).rglob("*") if place.is_file()]
        named = [self.stat(place.relative_to(self.folder).as_posix()) for place in found]
        return sorted([*named, *(lie for lie in self.lies if lie.name.startswith(under))]), True

    def _new_link(self, name: str) -> None:
        return None

    def moved(self, name, link, location):
        raise AssertionError("there are no links")

    def stat(self, name: str) -> FileInfo:
        data = (self.folder / name).read_bytes()
        return FileInfo(name, len(data), hashlib.md5(data).hexdigest())

    def read_directly(self, name: str, begin: int, length: int, etag: str | None) -> bytes:
        self.asked.append(name)
        if etag not in (None, self.stat(name).etag):
            raise ObjectChangedError("An object has changed.", object=f"{self.uri}/{name}")
        return (self.folder / name).read_bytes()[begin : begin + length]

    def put(self, name, path, *, new=False):
        raise AssertionError("nothing is written")

    def delete(self, names):
        raise AssertionError("nothing is removed")


@pytest.fixture
def folder_store(tmp_path: Path, local_datasets) -> FolderStore:
    """A small v3.0 dataset in a folder that a test may change."""
    import shutil

    return FolderStore(Path(shutil.copytree(local_datasets("v3.0"), tmp_path / "store")))
