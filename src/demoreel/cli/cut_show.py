"""What ``demoreel cut`` says: of plans, and of what it has written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from demoreel.cli.options import name_of_place
from demoreel.cli.output import Output, TableColumn, size
from demoreel.errors import count

if TYPE_CHECKING:
    from demoreel.edit.plan import Plan
    from demoreel.edit.render import Rendered

_FILES_SHOWN = 40


def show_plans(out: Output, plans: Mapping[str, Plan]) -> None:
    """Print what would be written, place by place."""
    found = [_plan_facts(plan, target) for target, plan in plans.items()]
    if out.json:
        out.result(found[0] if len(found) == 1 else {"parts": found})
        return
    for facts in found:
        said = f"{count(facts['episodes'], 'episode')}, {count(facts['frames'], 'frame')}"
        out.line(f"{facts['path']}: {said}, {size(facts['bytes'])}")
        for camera, frames in facts["encoded_frames"].items():
            out.line(f"  {camera}: {count(frames, 'frame')} to be encoded")
        for camera, clips in facts["whole_clips"].items():
            which = "1 episode is" if clips == 1 else f"{clips:,} episodes are"
            out.line(
                f"  {camera}: {which} encoded as a whole: this codec cannot mix copied and new "
                "frames"
            )
        for camera, clips in facts["black_clips"].items():
            out.line(f"  {camera}: {count(clips, 'episode')} to be black")
        for what in facts["dropped"]:
            out.line(f"  to be dropped: {what}")
        files = facts["files"]
        rows = [(file["path"], size(file["bytes"])) for file in files[:_FILES_SHOWN]]
        out.table([TableColumn("file"), TableColumn("bytes", right=True)], rows)
        if len(files) > _FILES_SHOWN:
            out.note(f"and {len(files) - _FILES_SHOWN:,} more; --json shows all")


def _plan_facts(plan: Plan, target: str) -> dict[str, Any]:
    files = _files(plan, target)
    clips = [
        {"source": c.source, "episode": c.episode, "start": c.start, "stop": c.stop}
        for c in plan.clips
    ]
    sources = [source.path for source in plan.cutlist.sources]
    return {"path": target, **plan.summary(), "sources": sources, "clips": clips, "files": files}


def _files(plan: Plan, target: str) -> list[dict[str, Any]]:
    """Return the tables and videos that a plan writes; of Lance, the tables that they go to."""
    from demoreel.edit.tasks import tables_for

    lance = tables_for(plan.form, name_of_place(target), plan.info)
    if lance is None:
        files = [{"path": t.path(plan.info), "bytes": t.size} for t in plan.tables]
        return files + [{"path": v.path(plan.info), "bytes": v.size} for v in plan.videos]
    in_place = target == plan.cutlist.sources[0].path
    frames = plan.readers[0].data_file(0) if in_place else lance.frames
    files = [{"path": frames, "bytes": sum(t.size for t in plan.tables)}]
    if plan.videos:
        files.append({"path": str(lance.videos), "bytes": sum(v.size for v in plan.videos)})
    return files


def _facts(done: Rendered) -> dict[str, Any]:
    version = {} if done.version is None else {"version": done.version}
    return {
        "path": str(done.path),
        "episodes": done.episodes,
        "frames": done.frames,
        "bytes": done.bytes,
        "resumed": done.resumed,
        "committed": done.committed,
        "dropped": list(done.dropped),
        **version,
    }


def show_results(out: Output, done: Sequence[Rendered]) -> None:
    """Print what was written."""
    if out.json:
        found = [_facts(rendered) for rendered in done]
        out.result(found[0] if len(found) == 1 else {"parts": found})
        return
    for each in done:
        if not each.committed:
            out.line(f"{each.path}: {size(each.bytes)} written; other shards and commit follow")
            continue
        said = f"{count(each.episodes, 'episode')}, {count(each.frames, 'frame')}"
        named = "" if each.version is None else f" in version {each.version}"
        out.line(f"{each.path}: {said}{named}, {size(each.bytes)} written")
        for what in each.dropped:
            out.note(f"dropped: {what}")
        if each.resumed:
            out.note(f"{count(each.resumed, 'file')} had been written before")
