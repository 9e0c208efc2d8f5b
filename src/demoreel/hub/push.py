"""Publishing a dataset: one commit with data and card, then the tag of its version.

Large files are sent before the commit, a batch at a time, as LFS objects; what the Hub has already
is not sent again, so an interrupted push continues where it was. The commit names its parent:
after another commit, the repository is looked at again, and so is what would be lost. The tag moves
after the commit; pushing again moves one that was left behind.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demoreel.errors import ArgumentError, DatasetBusyError, count
from demoreel.hub.card import (
    SHEET,
    CardFacts,
    ContactSheet,
    contact_sheet,
    merged_card,
    without_block,
)
from demoreel.hub.loss import refuse_loss
from demoreel.hub.plan import (
    CARD,
    FileToPush,
    PushPlan,
    PushReport,
    chooser,
    dataset_files,
    is_of_a_dataset,
    make_plan,
)
from demoreel.hub.records import CheckSums, KnownCommit, last_known, remember
from demoreel.hub.repository import CommitNotMadeError, Repository, RepositoryState, check_names
from demoreel.hub.snapshot import Report
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import not_a_dataset, open_reader
from demoreel.layouts.pending import refuse_waiting
from demoreel.read.dataset import Dataset
from demoreel.storage.amounts import ShareDone
from demoreel.storage.commit.writer_lock import HIDDEN, WriterLock, is_held
from demoreel.storage.hub_calls import MAIN
from demoreel.storage.json_files import read_json
from demoreel.storage.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from huggingface_hub import CommitOperationAdd

_TRIES = 5
_FILES_AT_ONCE = 32
_BYTES_AT_ONCE = 256 << 20


@dataclass(frozen=True, slots=True)
class PushOptions:
    """What a push was asked to do; see ``push``."""

    branch: str
    private: bool | None
    tags: tuple[str, ...]
    license: str | None
    tag_version: bool
    videos: bool
    patterns: tuple[str, ...] | None
    message: str | None
    force: bool
    dry_run: bool
    card: Mapping[str, Any] = field(default_factory=dict)


def push(
    dataset: str | os.PathLike[str] | Dataset,
    repo_id: str,
    *,
    branch: str | None = None,
    private: bool | None = None,
    tags: Iterable[str] = (),
    license: str | None = None,
    tag_version: bool | None = None,
    push_videos: bool = True,
    allow_patterns: str | Iterable[str] | None = None,
    message: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    token: str | None = None,
    report: Report | None = None,
    **card: Any,
) -> PushReport:
    """Publish a dataset on the Hub, in one commit; files that are there already are not sent.

    The repository is made if it is not there. What is published: ``meta/``, ``data/``, ``videos/``,
    the newest version of each Lance table, and a card with an image of first frames. Files of the
    dataset that the folder no longer has are deleted in the same commit; files that are no
    dataset's stay. Nothing hidden leaves the machine.

    Cost: files of the same size as on the Hub are read once, and their check sums remembered in the
    user's cache folder. Sends the bytes of new and changed files.

    Args:
        dataset: The dataset's folder, or one that is open; always as a whole.
        repo_id: ``me/my_task``.
        branch: The branch; ``main`` if None. One that is not there begins at ``main``.
        private: Whether only its owner sees it, where the repository is made; None leaves that to
            the Hub.
        tags: Tags for the card, beside ``LeRobot``.
        license: The licence for the card; None keeps the card's, or is ``apache-2.0``.
        tag_version: Whether the tag of the dataset's version (``v3.0``) moves to the commit;
            readers look for it. None: for ``main`` yes, for branches no.
        push_videos: Whether ``videos/`` is sent; if not, videos on the Hub stay as they are.
        allow_patterns: Only files that match one of these; others stay as they are.
        message: Of the commit.
        force: Push even where episodes would be lost that others have put there.
        dry_run: Say what would be done, and do nothing.
        token: A token; None takes ``HF_TOKEN`` or the login.
        report: Called with the share of bytes that are sent.
        **card: More for the card: ``url``, ``paper``, ``citation``; others become YAML keys.

    Raises:
        ArgumentError: An argument makes no sense, or a link leads out of the dataset; nothing was
            done.
        DatasetNotFoundError: There is no dataset.
        DatasetBusyError: It is being recorded, or changed while it was pushed.
        UnfinishedError: Saved episodes wait to be encoded, or a commit to be completed.
        NewerRemoteError: Episodes would be lost that others have put there; says which.
        AccessError: There is no token, or the Hub does not accept it.
        StoreError: The Hub does not answer; push again, and it continues.
    """
    check_names(repo_id, branch)
    root = _folder_of(dataset)
    options = PushOptions(
        branch=branch or MAIN,
        private=private,
        tags=_texts("tags", tags),
        license=license,
        tag_version=branch in (None, MAIN) if tag_version is None else tag_version,
        videos=push_videos,
        patterns=None if allow_patterns is None else _texts("allow_patterns", allow_patterns),
        message=message,
        force=force,
        dry_run=dry_run,
        card=card,
    )
    repository = Repository(repo_id, options.branch, token)
    if not dry_run:
        repository.require_token()
    with _held(root, dry_run=dry_run):
        return _Push(root, repository, options, report or (lambda share: None)).run()


class _Push:
    """One push of a dataset that is locked meanwhile."""

    def __init__(
        self, root: Path, repository: Repository, options: PushOptions, report: Report
    ) -> None:
        self.root = root
        self.repository = repository
        self.options = options
        self.report = report
        self.reader: Reader = open_reader(root)
        if not options.videos and self.reader.layout.startswith("lance"):
            raise ArgumentError(
                f"push_videos=False: the videos of a {self.reader.layout} dataset are in tables.",
                dataset=root,
            )
        self.files = dataset_files(root, self.reader.layout)
        _refuse_missing(self.reader, {file.name for file in self.files}, videos=options.videos)
        self.states = {file.name: _state(file) for file in self.files}
        self.sums = CheckSums(root)
        self.notes: list[str] = []
        self._sent: dict[str, CommitOperationAdd] = {}

    def run(self) -> PushReport:
        state = self.repository.look()
        known = last_known(self.root, *self._place)
        if not state.exists and not self.options.dry_run:
            self._planned(state, known)  # what cannot be pushed leaves no repository behind
            self.repository.create(private=self.options.private)
            state = replace(self.repository.look(), is_new=True)
        tried: list[PushReport] = []
        for _ in range(_TRIES):
            plan = self._planned(state, known)
            done = self._report(plan, state)
            if self.options.dry_run:
                return done
            if not state.has_branch and state.head is not None:
                self.repository.create_branch(state.head)
            if plan.is_empty:
                # After an answer that was lost: the commit is there, and was ours.
                return self._finish(tried[-1] if tried else done, str(state.head), state)
            try:
                return self._finish(done, self._commit(plan, state), state)
            except CommitNotMadeError as overtaken:
                seen, cause = state, overtaken
                known = KnownCommit(seen.head or "", {n: f.digest for n, f in seen.files.items()})
                state = replace(self.repository.look(), is_new=seen.is_new)
                if not overtaken.passes and state.head == seen.head:
                    break
                tried.append(done)
        raise cause

    @property
    def _place(self) -> tuple[str, str, str]:
        return self.repository.endpoint, self.repository.repo_id, self.options.branch

    def _planned(self, state: RepositoryState, known: KnownCommit | None) -> PushPlan:
        chosen = chooser(videos=self.options.videos, patterns=self.options.patterns)
        plan = make_plan(self.files, state.files, self.sums, chosen=chosen)
        if not self.options.force:
            every = plan.same | {name for name in state.files if not chosen(name)}
            refuse_loss(self.root, self.reader, self.repository, state, every, known)
        files = list(self.files)
        if not plan.is_empty or SHEET not in state.files:
            sheet = self._contact_sheet
            if sheet is not None:
                files.append(FileToPush(SHEET, sheet.jpeg, len(sheet.jpeg)))
        card = self._card(state, known).encode()
        files.append(FileToPush(CARD, card, len(card)))
        return make_plan(files, state.files, self.sums, chosen=chosen)

    @cached_property
    def _contact_sheet(self) -> ContactSheet | None:
        return contact_sheet(self.root)

    def _card(self, state: RepositoryState, known: KnownCommit | None) -> str:
        reader, options = self.reader, self.options
        cameras = reader.info.cameras
        shown = SHEET in state.files or (bool(cameras) and self._contact_sheet is not None)
        facts = CardFacts(
            title=self.repository.repo_id.split("/")[-1],
            layout=reader.layout,
            info=read_json(reader.meta / "info.json"),
            episodes=len(reader.episodes),
            frames=reader.episodes.total_frames,
            seconds=reader.episodes.total_frames / reader.info.fps,
            license=options.license,
            tags=options.tags,
            sheet=SHEET if shown else None,
            cameras=cameras,
            texts=options.card,
        )
        return merged_card(self._existing_card(state, known), facts)

    def _existing_card(self, state: RepositoryState, known: KnownCommit | None) -> str | None:
        """Return the card to edit: the Hub's, or the folder's where only that has changed."""
        here = self.root / CARD
        ours = here.read_text(errors="replace") if here.is_file() else None
        there = state.files.get(CARD)
        if there is None or state.head is None:
            return ours
        if ours is not None and known is not None and known.files.get(CARD) == there.digest:
            return ours
        with scratch_folder() as folder:
            self.repository.fetch(state, [CARD], folder)
            theirs = (folder / CARD).read_text(errors="replace")
        if ours is not None and without_block(ours) != without_block(theirs):
            self._note(f"the {CARD} on the Hub is kept; the folder's was not sent")
        return theirs

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _commit(self, plan: PushPlan, state: RepositoryState) -> str:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        for file in plan.send:
            if file.name not in self._sent or isinstance(file.content, bytes):
                self._sent[file.name] = CommitOperationAdd(file.name, file.content)
        self._send(plan)
        self._refuse_changed()
        operations: list[Any] = [self._sent[file.name] for file in plan.send]
        operations += [CommitOperationDelete(name, is_folder=False) for name in plan.delete]
        return self.repository.commit(
            operations, message=self.options.message or self._message(), parent=state.head
        )

    def _send(self, plan: PushPlan) -> None:
        done, total = 0, max(plan.bytes, 1)
        for batch in _batches(plan.send):
            self.repository.send([self._sent[file.name] for file in batch])
            done += sum(file.size for file in batch)
            self.report(ShareDone(done, total, "bytes"))

    def _refuse_changed(self) -> None:
        for file in self.files:
            if _state(file) != self.states[file.name]:
                raise DatasetBusyError(
                    "A file of the dataset changed while it was being pushed; nothing was "
                    "published.",
                    hint="let the process that writes it finish, then push again",
                    file=file.content,
                )

    def _message(self) -> str:
        reader = self.reader
        episodes = count(len(reader.episodes), "episode")
        frames = count(reader.episodes.total_frames, "frame")
        return f"Push {reader.layout}: {episodes}, {frames}"

    def _finish(self, done: PushReport, commit: str, state: RepositoryState) -> PushReport:
        """Move the tag, and remember what is on the Hub now."""
        if done.tag is not None and state.tags.get(done.tag) != commit:
            self.repository.move_tag(done.tag, commit)
            done = replace(done, tag_moved=True)
        done = replace(done, commit=commit)
        files = self.repository.files_at(commit) if commit != state.head else state.files
        kept = {n: f.digest for n, f in files.items() if n == CARD or is_of_a_dataset(n)}
        remember(self.root, *self._place, commit, kept)
        self.report(1.0)
        return done

    def _report(self, plan: PushPlan, state: RepositoryState) -> PushReport:
        tag = self.reader.info.version if self.options.tag_version else None
        return PushReport(
            repo_id=self.repository.repo_id,
            branch=self.options.branch,
            url=self.repository.url,
            layout=self.reader.layout,
            episodes=len(self.reader.episodes),
            frames=self.reader.episodes.total_frames,
            commit=state.head,
            tag=tag,
            tag_moved=False,
            sent={file.name: file.size for file in plan.send},
            deleted=plan.delete,
            unchanged=len(plan.same),
            created=state.is_new or not state.exists,
            dry_run=self.options.dry_run,
            notes=tuple(self.notes),
        )


def _folder_of(dataset: str | os.PathLike[str] | Dataset) -> Path:
    if not isinstance(dataset, Dataset):
        if isinstance(dataset, str) and "://" in dataset:
            raise ArgumentError(
                "A dataset is pushed from a folder on this machine.",
                hint=f"fetch it first: demoreel pull {dataset} FOLDER",
                uri=dataset,
            )
        root = Path(dataset)
        if not root.is_dir():
            raise not_a_dataset(root)
        return root
    chosen = dataset.reader.episodes
    if len(dataset.episodes) != len(chosen):
        raise ArgumentError(
            "This dataset was opened with some of its episodes, and is pushed as a whole.",
            hint="demoreel.cut(ds).render(FOLDER) makes a dataset of them; push that",
            dataset=dataset.root,
        )
    if dataset.reader.meta != dataset.root / "meta":
        raise ArgumentError(
            "This dataset was opened at an older version; the newest is what is pushed.",
            hint="demoreel.checkout() makes the older one the newest",
            dataset=dataset.root,
        )
    return dataset.root


def _refuse_missing(reader: Reader, names: set[str], *, videos: bool) -> None:
    """Refuse a dataset that is here in part: pushed, it would be in part on the Hub, too."""
    if reader.layout.startswith("lance"):
        return  # each of its tables lists its files
    cameras = [camera for camera in reader.info.video_keys if videos]
    for position in range(len(reader.episodes)):
        wanted = [reader.data_file(position)]
        wanted += [reader.video_file(position, camera) for camera in cameras]
        for name in wanted:
            if name not in names:
                raise ArgumentError(
                    "A file of this dataset is not in its folder, so it is not pushed.",
                    hint="fetch the rest of it; `demoreel check` lists what is missing",
                    file=name,
                    dataset=reader.root,
                )


@contextmanager
def _held(root: Path, *, dry_run: bool) -> Iterator[None]:
    """Keep others from writing to the dataset."""
    open_reader(root)
    refuse_waiting(root, "pushed")
    if dry_run:  # which writes nothing, not even a lock
        if is_held(root):
            raise DatasetBusyError(
                "The dataset is being written by another process.",
                hint="finish that recording, or wait for it",
                dataset=root,
            )
        yield
        return
    there = (root / HIDDEN).is_dir()
    try:
        lock = WriterLock(root)
    except OSError:  # a disk that cannot be written needs no lock
        yield
        return
    try:
        yield
    finally:
        lock.release(remove=not there)


def _texts(name: str, values: str | Iterable[str]) -> tuple[str, ...]:
    listed = [values] if isinstance(values, str) else list(values)
    if not all(isinstance(value, str) and value.strip() for value in listed):
        raise ArgumentError(f"{name}= holds something that is no text: {listed!r}.")
    return tuple(listed)


def _state(file: FileToPush) -> tuple[int, int, int] | None:
    if isinstance(file.content, bytes):
        return None
    try:
        status = os.stat(file.content)
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def _batches(files: Sequence[FileToPush]) -> Iterator[list[FileToPush]]:
    batch: list[FileToPush] = []
    for file in files:
        if batch and (
            len(batch) == _FILES_AT_ONCE or sum(f.size for f in batch) + file.size > _BYTES_AT_ONCE
        ):
            yield batch
            batch = []
        batch.append(file)
    if batch:
        yield batch
