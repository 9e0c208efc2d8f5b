"""From cut lists to datasets: one or several by one command, in folders or at URIs.

Until it is rendered, a cut needs metadata only, which are read where they lie. Rendering copies
packets and rows of files: those that clips lie in are fetched first. A remote target is rendered
here, and sent when it is whole. Of several, all are planned, and refused, before the first is
written; what is finished is remembered until the last one is, so that the same command goes on
after a kill and does not take its own results for those of another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from demoreel.edit.clips import CutList
from demoreel.edit.plan import Plan, make_plan
from demoreel.edit.render import Rendered, Report, Shard, Target, render
from demoreel.edit.scores import is_beside
from demoreel.edit.sources import open_source, open_unchanged, place_of
from demoreel.edit.target_info import Form
from demoreel.edit.verify import Verify
from demoreel.errors import ArgumentError
from demoreel.layouts.base import episode_files
from demoreel.run.anywhere import is_here, made_anywhere, refuse_remote, refuse_target
from demoreel.run.task import Engine
from demoreel.storage.remote.fetch import part_of
from demoreel.storage.remote.folder import RemoteFolder

_A_TRANSFER = 0.4  # of the work, about

Progress = Callable[[str], AbstractContextManager[Report | None]]
"""Given a target, yields what is called with the share of it that is written."""


def render_cut(
    cutlist: CutList,
    target: str | os.PathLike[str],
    *,
    form: Form,
    verification: Verify = "ends",
    engine: Engine | None = None,
    shard: Shard | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    report: Report | None = None,
    plan: Plan | None = None,
) -> Rendered:
    """Write the dataset that a cut list describes, wherever it and its sources lie.

    Cost: as ``render``. Of remote sources in LeRobot's own layouts, the tables and videos that
    clips lie in are fetched; of Lance datasets all files.

    Args:
        cutlist: The cut list.
        target: The folder to make, or a URI.
        form: How the result is to lie.
        verification: What is read back and compared before the target appears.
        engine: What runs the tasks; None is this process.
        shard: As for ``render``; only where all lies on this machine.
        overwrite: Of a URI: replace the dataset that is there.
        storage_options: Of a URI: as for ``demoreel.open``.
        report: Called with the share that is done.
        plan: The plan, if it is made already; what is done is remembered then.
    """
    if shard is not None:
        places = [source.path for source in cutlist.sources]
        refuse_remote(places, "A shard needs the dataset on this machine.")
        refuse_remote([target], "Shards write to a disk that they share.", hint="give a folder")
    if is_here(target) and (overwrite or storage_options):
        raise ArgumentError(
            "overwrite= and storage_options= are for remote targets.",
            hint="leave them out; an existing folder is never overwritten",
            path=target,
        )
    sources = [place_of(source) for source in cutlist.sources]
    begin = 0.0 if is_here(*sources) else _A_TRANSFER / 2
    end = 1.0 if is_here(target) else 1 - _A_TRANSFER

    def make(folders: list[Path], folder: Path | None) -> Rendered:
        assert folder is not None
        at_hand = (
            source if is_here(place) else replace(source, path=str(copy))
            for source, place, copy in zip(cutlist.sources, sources, folders, strict=True)
        )
        own = plan or make_plan(replace(cutlist, sources=tuple(at_hand)), form=form)
        return render(
            own,
            Target(folder, verification, remembered=plan is not None),
            engine=engine,
            shard=shard,
            report=part_of(report, begin, end),
        )

    done, sent = made_anywhere(
        sources,
        target,
        make,
        work=("cut", cutlist.to_json(), asdict(form), verification),
        needed=lambda number: _needed(cutlist, number),
        note=asdict,
        noted=lambda noted: Rendered(**{**noted, "dropped": tuple(noted.get("dropped", ()))}),
        overwrite=overwrite,
        storage_options=storage_options,
        fetching=part_of(report, 0.0, begin),
        sending=part_of(report, end, 1.0),
    )
    if sent is None:
        return done
    resumed = done.resumed + sent.files - sent.sent_files
    return replace(done, bytes=sent.sent_bytes, resumed=resumed)


def _needed(cutlist: CutList, number: int) -> set[str] | None:
    """Return the tables and videos that clips of a source lie in; None is all files."""
    source = cutlist.sources[number]
    reader = open_source(source)
    if reader.layout.startswith("lance"):
        return None
    episodes = {clip.episode for clip in cutlist.clips if clip.source == number}
    positions = [reader.episodes.position_of(episode) for episode in episodes]
    cameras = [key for key in reader.info.video_keys if key not in source.remove]
    found = set(episode_files(reader, positions, cameras=cameras))
    place = place_of(source)
    if isinstance(place, RemoteFolder):
        found |= {name for name, _ in place.every_file()[0] if is_beside(name)}
    return found


def plan_several(
    cuts: Mapping[str, CutList],
    *,
    form: Form,
    overwrite: bool = False,
    verification: Verify = "ends",
) -> dict[str, Plan]:
    """Plan all, and refuse targets at which there is something already. Nothing is written."""
    plans = {target: make_plan(cutlist, form=form) for target, cutlist in cuts.items()}
    for target, plan in plans.items():
        made = is_here(target) and Target(Path(target), verification).made_before(plan)
        sources = [source.path for source in cuts[target].sources]
        refuse_target(sources, target, overwrite=overwrite, made=made)
    return plans


def render_several(
    cuts: Mapping[str, CutList],
    *,
    form: Form,
    overwrite: bool = False,
    verification: Verify = "ends",
    progress: Progress | None = None,
    **options: Any,
) -> list[Rendered]:
    """Write several datasets, one after the other.

    After a kill, Ctrl-C or a full disk the same call goes on where that was; what is remote,
    source or target, is not remembered.

    Args:
        cuts: By target, what is to be written there.
        form: How all of them are to lie.
        overwrite: Of URIs: replace the datasets that are there.
        verification: What is read back and compared before a target appears.
        progress: Shows how far each of them is.
        **options: As for ``render_cut``.
    """
    done = []
    plans: dict[str, Plan] = {}
    if len(cuts) > 1:
        plans = plan_several(cuts, form=form, overwrite=overwrite, verification=verification)
    remembered = {
        target: plan
        for target, plan in plans.items()
        if is_here(target, *(source.path for source in cuts[target].sources))
    }
    for target, cutlist in cuts.items():
        if target in remembered:
            open_unchanged(cutlist.sources)
        with nullcontext() if progress is None else progress(target) as report:
            rendered = render_cut(
                cutlist,
                target,
                form=form,
                overwrite=overwrite,
                verification=verification,
                report=report,
                plan=remembered.get(target),
                **options,
            )
            done.append(rendered)
    for target, plan in remembered.items():
        Target(Path(target), verification).forget_made(plan)
    return done
