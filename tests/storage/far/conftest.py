"""A store that is a folder of this machine: what a store promises, without a server."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from demoreel.errors import ObjectChangedError
from demoreel.storage.far.store_calls import Listed


class FolderStore:
    """Files of a folder, as objects without links.

    Attributes:
        asked: What was asked for, in order.
        lies: Names that the listing has besides.
    """

    place = None
    pins = True
    requests_a_file = 1

    def __init__(self, folder: Path, uri: str = "s3://bucket/folder") -> None:
        self.folder = folder
        self.uri = uri
        self.asked: list[str] = []
        self.lies: list[Listed] = []
        self.direct = self

    def folders(self) -> list[str]:
        self.asked.append("folders")
        return sorted(place.name for place in self.folder.iterdir() if place.is_dir())

    def files(self, under: str, *, most_pages: int) -> tuple[list[Listed], bool]:
        self.asked.append(under)
        found = [place for place in (self.folder / under).rglob("*") if place.is_file()]
        named = [self.look(place.relative_to(self.folder).as_posix()) for place in found]
        return sorted([*named, *(lie for lie in self.lies if lie.name.startswith(under))]), True

    def sha256(self, name: str) -> None:
        return None

    def link(self, name: str, *, renew: bool) -> None:
        return None

    def link_at_hand(self, name: str) -> None:
        return None

    def look(self, name: str) -> Listed:
        data = (self.folder / name).read_bytes()
        return Listed(name, len(data), hashlib.md5(data).hexdigest())

    def read(self, name: str, begin: int, length: int, etag: str | None) -> bytes:
        self.asked.append(name)
        if etag not in (None, self.look(name).etag):
            raise ObjectChangedError("An object has changed.", object=f"{self.uri}/{name}")
        return (self.folder / name).read_bytes()[begin : begin + length]


@pytest.fixture
def folder_store(tmp_path: Path, local_datasets) -> FolderStore:
    """A small v3.0 dataset in a folder that a test may change."""
    import shutil

    return FolderStore(Path(shutil.copytree(local_datasets("v3.0"), tmp_path / "store")))
