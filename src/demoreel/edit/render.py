"""Rendering a cut list: plan, tasks, commit."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from demoreel.edit.clips import CutList
from demoreel.edit.metadata import write_metadata
from demoreel.edit.plan import Plan, make_plan
from demoreel.edit.target_info import Form
from demoreel.edit.tasks import fragments_of, lance_tables, parts_of, tasks_of
from demoreel.edit.verbatim import write_verbatim
from demoreel.edit.verify import Verify, verify_rows, verify_videos
from demoreel.edit.written import ParquetTables, Written, WrittenLanceRows
from demoreel.errors import ArgumentError
from demoreel.layouts.detect import open_reader
from demoreel.layouts.lance import write as lance_write
from demoreel.layouts.lance.schemas import LanceSchema
from demoreel.run.local import LocalEngine
from demoreel.run.task import Engine, Task, share
from demoreel.stats.recompute import recompute
from demoreel.storage.commit.files import refuse_overlap, sync_all, write_whole
from demoreel.storage.commit.staging import (
    ORDER,
    Staging,
    forget,
    refuse_small_disk,
    staging,
    staging_folder,
    was_made,
)
from demoreel.storage.json_files import read_json
from demoreel.storage.local import let_go_of

_KIND = "cut"

Report = Callable[[float], None]
"""Called with the share of the bytes that are written, from 0 to 1."""

Check = Callable[[Path, Collection[str]], None]
"""Called with a folder, and the names of the tasks that were not done by an earlier attempt."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What was written.

    Attributes:
        path: Where, a URI if that is remote; not there yet after a shard.
        episodes: How many.
        frames: How many.
        bytes: Bytes of tables and videos that this call wrote.
        resumed: Files that an earlier attempt had written.
        committed: Whether the dataset is there.
        version: Of an edit in place, the version that it made.
        tasks: Into how many tasks the work was cut.
        dropped: What the sources hold or state, and the result does not, a sentence each.
    """

    path: Path | str
    episodes: int
    frames: int
    bytes: int
    resumed: int
    committed: bool
    version: int | None = None
    tasks: int = 0
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``number`` (from 0) of ``of`` parts of the work."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of:
            raise ArgumentError(f"There is no shard {self.number} of {self.of}; they count from 0.")


def render(
    cutlist: CutList,
    target: str | os.PathLike[str],
    *,
    form: Form | None = None,
    engine: Engine | None = None,
    shard: Shard | None = None,
    verification: Verify = "ends",
    report: Report | None = None,
    plan: Plan | None = None,
    check: Check | None = None,
    remember: bool = False,
    besides: str = "",
    resumable: bool = True,
) -> Rendered:
    """Write the dataset that a cut list describes.

    Cost: one copy of the clips' bytes, one decode of the tables' columns; no image is decoded.
    The target is absent until it is whole. After a kill, Ctrl-C or a full disk, the same call goes
    on from the files that were finished; if all were, and the target is there, nothing is left.

    Args:
        cutlist: The cut list.
        target: The folder to make.
        form: How the result is to lie on disk; None is v3.0.
        engine: What runs the tasks; None is this process.
        shard: Do only this part of the tasks, and leave the rest to others.
        verification: What is read back and compared before the target appears.
        report: Called with the share that is done.
        plan: The plan of this cut list, if it is made already.
        check: Called when all is in the folder, before the target appears; what it raises is
            raised here, and then nothing is kept. It may add to ``meta/``.
        remember: Let the same call find that all is done, until ``forget_made``.
        besides: What ``check`` adds; a result with something else is not taken for this one.
        resumable: Whether Ctrl-C and a full disk leave something to go on from; a kill always does.

    Raises:
        ArgumentError: The cut list makes no sense; nothing was written.
        TargetExistsError: There is something at the target.
        DatasetBusyError: Another process does the same right now.
        DiskFullError: There is no room.
        ConversionError: The result is not what the sources hold; it was not kept.
    """
    place = Path(target)
    for source in cutlist.sources:
        refuse_overlap(source.path, place)
    plan = plan or make_plan(cutlist, form=form)
    if not staging_folder(place, kind=_KIND, fingerprint=plan.fingerprint).exists():
        refuse_small_disk(place, plan.size // (1 if shard is None else shard.of))
    with staging(
        place,
        kind=_KIND,
        fingerprint=plan.fingerprint,
        work=_work(verification, besides),
        shared=shard is not None,
        remember=remember,
        resumable=resumable,
    ) as stage:
        compare, threads = verification == "full", getattr(engine, "threads", None)
        tasks = tasks_of(plan, stage, compare=compare, threads=threads)
        undone, own = [], []
        dropped = list(plan.dropped)
        if not stage.committed:
            _note_order(stage, cutlist, plan.form)
            undone = [task for task in tasks if stage.done(task.name) is None]
            own = undone if shard is None else _own(tasks, undone, shard)
            refuse_small_disk(place, sum(task.weight for task in own))
            engine = engine or LocalEngine()
            finisher = _Finisher(plan, stage, verification, engine) if shard is None else None
            _run(own, engine, stage, report, finisher)
            if finisher is not None:
                finisher.commit(check, own, recompute_stats=plan.form.recompute_stats)
                dropped += finisher.dropped
        return Rendered(
            path=place,
            episodes=len(plan.clips),
            frames=int(plan.start[-1]),
            bytes=sum(task.weight for task in own),
            resumed=len(tasks) - len(undone),
            committed=stage.committed,
            tasks=len(tasks),
            dropped=tuple(dropped),
        )


def commit(target: str | os.PathLike[str], *, verification: Verify = "ends") -> Rendered:
    """Finish what shards have written: metadata, a look at the result, one rename.

    Args:
        target: The folder that the shards were given; what they were to write lies beside it.
        verification: What is read back and compared before the target appears.

    Raises:
        ArgumentError: No shard has begun, or some tasks are not done yet; what is there stays.
        ConversionError: The result is not what the sources hold.
    """
    place = Path(target)
    cutlist, form = _ordered(place)
    plan = make_plan(cutlist, form=form)
    folder = staging_folder(place, kind=_KIND, fingerprint=plan.fingerprint)
    stage = Staging(folder, place, _work(verification))
    undone = [task.name for task in tasks_of(plan, stage) if stage.done(task.name) is None]
    if undone and not stage.committed:
        raise ArgumentError(
            f"{len(undone)} of the tasks are not done yet, {undone[0]} among them.",
            hint="wait for the other shards, or run the lost ones again",
            path=place,
        )
    return render(cutlist, place, form=form, verification=verification)


def made_before(
    target: Path, plan: Plan, *, verification: Verify = "ends", besides: str = ""
) -> bool:
    """Whether ``render`` with this plan and these options would find that all is done."""
    work = _work(verification, besides)
    return was_made(target, kind=_KIND, fingerprint=plan.fingerprint, work=work)


def forget_made(target: Path, plan: Plan, *, verification: Verify = "ends") -> None:
    """Forget what ``render`` was asked to remember of a target."""
    forget(target, kind=_KIND, fingerprint=plan.fingerprint, work=_work(verification))


def _work(verification: Verify, besides: str = "") -> str:
    return f"verified {verification} {besides}".rstrip()


def _note_order(stage: Staging, cutlist: CutList, form: Form) -> None:
    """Note what is being written, for ``commit`` to find."""
    order = stage.folder / ORDER
    if not order.exists():
        noted = {"cutlist": cutlist.to_json(), "form": asdict(form)}
        write_whole(order, lambda path: _write_json(path, noted))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def _ordered(target: Path) -> tuple[CutList, Form]:
    orders = target.parent.glob(f".{glob.escape(target.name)}.{_KIND}-*/{ORDER}")
    # Without its dataset, it had given that its place, which is another's now or nobody's.
    found = sorted(o for o in orders if target.exists() or (o.parent / "dataset").is_dir())
    if len(found) != 1:
        raise ArgumentError(
            "No shard of a cut to this folder has written anything."
            if not found
            else "Shards of several cuts to this folder have been begun.",
            hint="run the shards first" if not found else "delete all but one of them",
            path=target,
            begun=", ".join(order.parent.name for order in found) or None,
        )
    raw = read_json(found[0])
    return CutList.from_json(raw["cutlist"], where=str(found[0])), Form(**raw["form"])


def _own(tasks: list[Task], undone: list[Task], shard: Shard) -> list[Task]:
    """Return what a shard still has to do; shares are those of all tasks, done or not."""
    mine = {task.name for task in share(tasks, shard.number, shard.of)}
    return [task for task in undone if task.name in mine]


def _run(
    tasks: list[Task],
    engine: Engine,
    stage: Staging,
    report: Report | None,
    finisher: _Finisher | None,
) -> None:
    total = sum(task.weight for task in tasks) or 1
    undone = [task for task in tasks if not task.copies]
    done = 0
    for task, result in engine.run(tasks):
        stage.note(task.name, result)
        done += task.weight
        if report is not None:
            report(done / total)
        undone = [other for other in undone if other is not task]
        if finisher is not None and not undone:
            finisher.write_metadata()  # meanwhile, videos are being copied


class _Finisher:
    """The end of the work: metadata as soon as all tables are there, then a look, then a rename."""

    def __init__(self, plan: Plan, stage: Staging, verification: Verify, engine: Engine) -> None:
        self._plan = plan
        self._stage = stage
        self._verification = verification
        self._engine = engine
        self._lance = lance_tables(plan, stage)
        self._written = False
        self.dropped: list[str] = []

    def write_metadata(self) -> None:
        if self._written:
            return
        plan, stage = self._plan, self._stage
        rows = self._rows_written()
        if plan.verbatim is not None:
            write_verbatim(plan.readers[0], plan.verbatim, plan.layout, stage.dataset)
            self._written = True
            return
        parts = parts_of(plan, stage)
        self.dropped = write_metadata(plan, stage.dataset, parts, rows)
        self._written = True
        if self._verification != "none":
            result, full = open_reader(stage.dataset), self._verification == "full"
            verify_rows(plan, result, rows, full=full, engine=self._engine)

    def _rows_written(self) -> Written:
        plan, stage = self._plan, self._stage
        if self._lance is None:
            return ParquetTables([stage.dataset / table.path(plan.info) for table in plan.tables])
        stage.settle()  # notes say which fragments there are
        fragments = fragments_of(plan, stage, "rows")
        table = lance_write.make_rows_table(
            self._lance, stage.dataset, plan.info, fragments, codec=plan.form.images_as
        )
        return WrittenLanceRows(table)

    def _make_tables(self, lance: LanceSchema) -> None:
        dataset = self._stage.dataset
        self._stage.settle()
        lance_write.make_videos_table(
            lance, dataset, fragments_of(self._plan, self._stage, "videos")
        )
        lance_write.make_copy(lance, dataset)

    def commit(
        self, check: Check | None, tasks: Sequence[Task], *, recompute_stats: bool = False
    ) -> None:
        self.write_metadata()
        with ThreadPoolExecutor(1, "demoreel-tables") as thread:
            settling: Future[None] | None = None
            if self._lance is not None:
                self._make_tables(self._lance)
                settling = thread.submit(
                    lance_write.finish_tables, self._lance, self._stage.dataset
                )
            self._look(check, tasks)
            if settling is not None:
                settling.result()
        if recompute_stats:
            recompute(self._stage.dataset, numbers=False, pictures="missing")
        self._stage.settle()
        sync_all((self._stage.dataset / "meta").rglob("*"))
        self._stage.commit()

    def _look(self, check: Check | None, tasks: Sequence[Task]) -> None:
        """Compare the result with its sources, and let the caller do so."""
        dataset = self._stage.dataset
        if self._verification != "none" and self._plan.verbatim is None:
            full = self._verification == "full"
            verify_videos(self._plan, open_reader(dataset), full=full)
            let_go_of(dataset)
        if check is not None:
            if self._plan.verbatim is not None:
                self._stage.settle()  # what is copied whole is on disk already
            check(dataset, {task.name for task in tasks})
            let_go_of(dataset)
