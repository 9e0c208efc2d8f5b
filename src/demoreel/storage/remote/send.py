"""Uploads a dataset to an object store, ``meta/info.json`` last.

A dataset is found by its ``meta/info.json``. While it is not there nothing is; when it
is, all else has been compared with what was made here. What is to be replaced loses its own first,
so that no reader ever finds a mixture.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from demoreel.errors import ArgumentError, StoreError, TargetExistsError, call_place
from demoreel.storage.amounts import ShareDone
from demoreel.storage.folder import refuse_links_out
from demoreel.storage.remote.fetch import digest_of, name_of, working_folder
from demoreel.storage.remote.files import store_of
from demoreel.storage.remote.object_store import PART_BYTES, ObjectStore
from demoreel.storage.store import FileInfo, is_uri
from demoreel.storage.threads import parallel_map

Report = Callable[[float], None]
"""Called with the share of the bytes that are sent, from 0 to 1."""

INFO = "meta/info.json"

_AT_A_TIME = 8
_COMPARED_BYTES = 8 << 20
_OURS = re.compile(
    r"(meta|data|videos|images|\.versions|[^/]+\.lance)/.+|README\.md|\.gitattributes"
)
_MD5 = re.compile(r'"?([0-9a-f]{32})(?:-(\d+))?"?')


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent.

    Attributes:
        files: Files of the dataset.
        bytes: Their size.
        sent_files: Those that were not there already.
        sent_bytes: Their size.
    """

    files: int
    bytes: int
    sent_files: int
    sent_bytes: int


@contextmanager
def remote_target(
    uri: str,
    *what: object,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[RemoteTarget]:
    """Yield the place on this machine where a dataset is made that is to be sent to a URI.

    Where the same was interrupted before, what it had made is still there. All is gone when the
    block ends well, and after an error that would come again.

    Args:
        uri: Where the dataset is to be: ``s3://bucket/path``, ``gs://`` or ``az://``.
        what: What is made; the same only if the same dataset would come out.
        overwrite: Replace a dataset that is there.
        storage_options: As for ``demoreel.open``.
    """
    store = _writable(uri, storage_options)
    with working_folder("send", store.uri, *what, alone=True) as folder:
        target = RemoteTarget(store, folder, overwrite=overwrite)
        target.refuse_existing()
        yield target


def refuse_remote_target(
    uri: str, *, overwrite: bool = False, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Refuse a URI that a dataset could not be sent to; for dry runs. Nothing is written."""
    _refuse_what_is_there(_writable(uri, storage_options), overwrite=overwrite)


def refuse_remote_overlap(source: object, target: object) -> None:
    """Refuse to write a dataset over its own source, or into it, or around it."""
    if is_uri(source) and is_uri(target):
        one, other = (f"{str(place).rstrip('/')}/" for place in (source, target))
        if one.startswith(other) or other.startswith(one):
            raise ArgumentError(
                "Source and target are the same place, or one is inside the other.",
                hint="choose another place",
                uri=target,
            )


def _writable(uri: str, storage_options: Mapping[str, Any] | None) -> ObjectStore:
    store = store_of(uri, storage_options)
    if not isinstance(store, ObjectStore):
        bucket = uri.startswith("hf://buckets/")
        raise ArgumentError(
            "Datasets are not written to buckets on the Hub yet."
            if bucket
            else "A dataset is published on the Hub by a push, in one commit.",
            hint="write it to a folder, then: "
            + ("hf buckets sync ./folder " + uri if bucket else "demoreel push ./folder me/name"),
            uri=uri,
        )
    return store


def _listed(store: ObjectStore) -> dict[str, FileInfo]:
    found, _ = store.list()
    return {file.name: file for file in found if not file.name.endswith("/")}


def _refuse_what_is_there(store: ObjectStore, *, overwrite: bool) -> None:
    there = _listed(store)
    if not there:
        return
    foreign = next((name for name in there if not _OURS.fullmatch(name)), None)
    if overwrite and foreign is None:
        return
    if overwrite:
        raise TargetExistsError(
            "What is at this place is not only a dataset, so that it is not replaced.",
            hint="choose another place, or delete what is there yourself",
            uri=store.uri,
            object=foreign,
        )
    raise TargetExistsError(
        "There is a dataset at this place."
        if INFO in there
        else "There is something at this "
        "place: perhaps what an interrupted upload of another command has left.",
        hint="choose another place, or pass overwrite (--overwrite) to replace it",
        uri=store.uri,
        object=next(iter(there)),
    )


class RemoteTarget:
    """A dataset that is made here and sent; made by ``remote_target``.

    Args:
        store: Where it is to be.
        folder: The working folder.
        overwrite: Whether a dataset that is there is replaced.

    Attributes:
        folder: The folder to make.
    """

    def __init__(self, store: ObjectStore, folder: Path, *, overwrite: bool) -> None:
        self._store = store
        self._note = folder / "made.json"
        self._journal = folder / "sent.jsonl"
        self._overwrite = overwrite
        self.folder = folder / name_of(store.uri)
        call_place(str(self.folder), store.uri)

    @property
    def uri(self) -> str:
        """Where it is to be."""
        return self._store.uri

    def refuse_existing(self) -> None:
        """Refuse what is there, unless this upload has sent it before it was interrupted."""
        if not self._journal.exists():
            _refuse_what_is_there(self._store, overwrite=self._overwrite)

    def made(self) -> dict[str, Any] | None:
        """Return what was noted when the dataset had been made; None if it has to be made."""
        try:
            noted: dict[str, Any] = json.loads(self._note.read_bytes())
        except (OSError, ValueError):
            shutil.rmtree(self.folder, ignore_errors=True)  # killed just before the note
            return None
        return noted if self.folder.is_dir() else None

    def note_made(self, what: Mapping[str, Any]) -> None:
        """Note that the dataset is whole, so that it need not be made again to be sent."""
        fresh = self._note.with_suffix(".new")
        fresh.write_text(json.dumps(what, default=str))
        os.replace(fresh, self._note)

    def send(self, report: Report | None = None) -> Sent:
        """Send the folder; what is there already in the same state is not sent again.

        Cost: reads each file twice, once for its check sum; two listings. Eight files at a time,
        those above 8 MiB in parts.
        """
        refuse_links_out(self.folder)
        files = {file.name: file for file in _files_of(self.folder)}
        there = _listed(self._store)
        before = self._sent_before()
        missing = self._missing(files, there, before or {})
        if INFO not in missing and there.keys() == files.keys():
            self._compare(files, there)  # the last attempt had done all but hear of it
        else:
            self._refuse_foreign(files, there, begun=before is not None)
            self._journal.touch()
            self._make_way(there, [name for name in files if name not in missing])
            missing.pop(INFO, None)
            self._put(list(missing.values()), report)
            rest = {name: file for name, file in files.items() if name != INFO}
            self._compare(rest, _listed(self._store))
            self._commit(files[INFO])
            missing[INFO] = files[INFO]
        return Sent(
            files=len(files),
            bytes=sum(file.size for file in files.values()),
            sent_files=len(missing),
            sent_bytes=sum(file.size for file in missing.values()),
        )

    def _refuse_foreign(
        self, files: Mapping[str, _SentFile], there: Mapping[str, FileInfo], *, begun: bool
    ) -> None:
        """Refuse what has come to be there since this upload began."""
        own = begun and INFO not in there and there.keys() <= files.keys()
        if not own:
            _refuse_what_is_there(self._store, overwrite=self._overwrite)

    def _make_way(self, there: Mapping[str, FileInfo], same: list[str]) -> None:
        """Delete what is there and is not the same; what makes it a dataset comes first."""
        if INFO in there:
            self._store.delete([INFO])
        self._store.delete([name for name in there if name != INFO and name not in same])

    def _commit(self, info: _SentFile) -> None:
        try:
            self._store.put(INFO, str(info.path), new=True)
        except TargetExistsError:
            if not self._is_there(info, self._store.stat(INFO), {}):
                raise  # else it is our own, and only the answer was lost
        self._compare({INFO: info}, {INFO: self._store.stat(INFO)})

    def _missing(
        self, files: Mapping[str, _SentFile], there: Mapping[str, FileInfo], sent: Mapping[str, str]
    ) -> dict[str, _SentFile]:
        """Return the files that are not there in the same state."""
        return {
            name: file
            for name, file in files.items()
            if not self._is_there(file, there.get(name), sent)
        }

    def _sent_before(self) -> dict[str, str] | None:
        """Return the check sums of the files that an earlier attempt sent; None if there is none.

        Only stores whose etags are check sums would tell otherwise.
        """
        try:
            lines = self._journal.read_text().splitlines()
        except OSError:
            return None
        found = {}
        for line in lines:
            try:
                name, md5 = json.loads(line)
            except ValueError:
                continue  # the line that was being written when the process was killed
            found[name] = md5
        return found

    def _is_there(self, file: _SentFile, there: FileInfo | None, sent: Mapping[str, str]) -> bool:
        if there is None or there.size != file.size:
            return False
        same = file.has_etag(there.etag)
        return sent.get(file.name) == file.md5 if same is None else same

    def _put(self, files: list[_SentFile], report: Report | None) -> None:
        total = sum(file.size for file in files) or 1
        done = 0
        with open(self._journal, "a", encoding="utf-8") as journal:
            # The largest first, so that none of them is what all wait for at the end.
            ordered = sorted(files, key=lambda file: -file.size)
            for file in parallel_map(self._put_one, ordered, most=_AT_A_TIME):
                journal.write(json.dumps([file.name, file.md5]) + "\n")
                journal.flush()
                done += file.size
                if report is not None:
                    report(ShareDone(done, total, "bytes"))

    def _put_one(self, file: _SentFile) -> None:
        self._store.put(file.name, str(file.path))
        file.md5  # noqa: B018  # computed here, beside others, and kept

    def _compare(self, files: Mapping[str, _SentFile], there: Mapping[str, FileInfo]) -> None:
        """Refuse to continue where the store does not hold what was sent, or holds more."""
        extra = there.keys() - files.keys()
        if extra:
            raise StoreError(
                f"Another object has come to be where a dataset is being written: {min(extra)!r}.",
                hint="stop other writers to this place, then run the same command again",
                uri=self.uri,
            )
        doubtful = []
        for name, file in files.items():
            found = there.get(name)
            if found is None or found.size != file.size:
                raise self._not_held(name)
            if file.has_etag(found.etag) is False:
                doubtful.append((file, found))
        for _ in parallel_map(partial(_read_back, self), doubtful, most=_AT_A_TIME):
            pass

    def read_back(self, file: _SentFile, found: FileInfo) -> None:
        """Compare an object with the file: encrypted ones have etags like other objects' sums."""
        remote = self._store.file(found.name, found)
        with open(file.path, "rb") as local:
            while data := local.read(_COMPARED_BYTES):
                if remote.read(local.tell() - len(data), len(data)) != data:
                    raise self._not_held(file.name)

    def _not_held(self, name: str) -> StoreError:
        return StoreError(
            "The store does not hold what was sent to it; there is no dataset at this place yet.",
            hint="run the same command again",
            object=f"{self.uri}/{name}",
        )


def _read_back(target: RemoteTarget, pair: tuple[_SentFile, FileInfo]) -> None:
    target.read_back(*pair)


class _SentFile:
    """A file that is to be sent."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.size = path.stat().st_size
        self._md5: str | None = None

    @property
    def md5(self) -> str:
        """Its check sum; computed once."""
        if self._md5 is None:
            self._md5 = digest_of(self.path, "md5")
        return self._md5

    def has_etag(self, etag: str | None) -> bool | None:
        """Return whether an etag is that of the same bytes; None where it cannot tell."""
        found = _MD5.fullmatch(etag or "")
        if found is None:
            return None
        if found[2] is None:
            return found[1] == self.md5
        if int(found[2]) != -(-self.size // PART_BYTES):
            return None  # sent by another program, in parts of another size
        return found[1] == self._md5_of_parts()

    def _md5_of_parts(self) -> str:
        whole = hashlib.md5(usedforsecurity=False)
        with open(self.path, "rb") as file:
            while data := file.read(PART_BYTES):
                whole.update(hashlib.md5(data, usedforsecurity=False).digest())
        return whole.hexdigest()


def _files_of(folder: Path) -> Iterator[_SentFile]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent, name)
            yield _SentFile(path.relative_to(folder).as_posix(), path)
