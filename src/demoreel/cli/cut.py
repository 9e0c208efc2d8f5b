"""``demoreel cut``: delete, split, merge, trim, tasks, features, select, apply, commit."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from demoreel.cli.options import (
    Address,
    DatasetPath,
    DatasetPaths,
    EngineName,
    Overwrite,
    Staging,
    Target,
    TargetOrNone,
    command,
    engine_named,
    episode_numbers,
    name_of_place,
    only_here,
    parameters_of,
    place,
    with_parameters,
)
from demoreel.cli.output import Output, TableColumn, size
from demoreel.errors import ArgumentError, count
from demoreel.storage.store import is_uri

if TYPE_CHECKING:
    from demoreel.edit.cut import Cut
    from demoreel.edit.plan import Plan
    from demoreel.edit.render import Rendered, Shard
    from demoreel.run.task import Engine

    Cuts = Mapping[str, Cut] | Mapping[str | None, Cut]

app = typer.Typer(
    name="cut",
    help="Make a new dataset of episodes of others, without encoding.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

InPlace = Annotated[
    bool, typer.Option("--in-place", help="Make a new version of the Lance dataset itself; no OUT.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and write nothing.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes to use.")]
ShardText = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Do part I of N, counted from 0, and leave the rest; `demoreel cut commit` ends it.",
    ),
]
Save = Annotated[
    Path | None, typer.Option("--save", metavar="FILE", help="Write the cut list too.")
]
VerifyName = Annotated[
    Literal["ends", "full", "none"],
    typer.Option(
        "--verify", help="Compare each clip's first and last frame, all frames, or nothing."
    ),
]
LayoutName = Annotated[
    Literal["v3.0", "v2.1", "lance-video", "lance-native", "lance-frames"],
    typer.Option("--layout", help="How OUT is stored."),
]
Together = Annotated[
    Literal["strict", "common", "union"],
    typer.Option("--features", help="What to do with features that only some datasets have."),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Carry no packets that are not a clip's own: encode its frames before the next "
        "keyframe.",
    ),
]
Fps = Annotated[float | None, typer.Option("--fps", metavar="N", help="Another frame rate.")]
Vcodec = Annotated[
    str | None,
    typer.Option(
        "--vcodec",
        metavar="CODEC",
        help="Encode videos: av1, h264, hevc, vp9, or an encoder such as libsvtav1.",
    ),
]
Crf = Annotated[int | None, typer.Option("--crf", metavar="N", help="Its quality; less is better.")]
Gop = Annotated[
    int | None, typer.Option("--gop", "-g", metavar="N", help="Frames from keyframe to keyframe.")
]
Preset = Annotated[
    str | None, typer.Option("--preset", metavar="NAME", help="The encoder's speed.")
]
PixFmt = Annotated[str | None, typer.Option("--pix-fmt", metavar="NAME", help="E.g. yuv444p.")]
Cameras = Annotated[
    list[str] | None,
    typer.Option("--camera", metavar="KEY", help="Encode only this one; may be repeated."),
]
Images = Annotated[
    Literal["keep", "video"],
    typer.Option("--images", help="What becomes of images that are in the tables."),
]
RecomputeStats = Annotated[
    bool,
    typer.Option(
        "--recompute-stats", help="Decode images whose statistics would be approximate otherwise."
    ),
]

DropAudio = Annotated[
    bool, typer.Option("--drop-audio", help="Leave the audio of videos out; it is copied else.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """The options of every verb that decide how its result is to be."""

    exact: Exact = False
    fps: Fps = None
    vcodec: Vcodec = None
    crf: Crf = None
    gop: Gop = None
    preset: Preset = None
    pix_fmt: PixFmt = None
    camera: Cameras = None
    images: Images = "keep"
    recompute_stats: RecomputeStats = False
    drop_audio: DropAudio = False

    def chosen(self) -> dict[str, Any]:
        """Return them as ``Cut.render`` takes them."""
        found = {field.name: getattr(self, field.name) for field in fields(_Form)}
        found["cameras"] = found.pop("camera") or None
        preset = found["preset"]
        found["preset"] = int(preset) if preset is not None and preset.isdigit() else preset
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work(_Form):
    """How a verb is to do its work: the options that all of them have."""

    in_place: InPlace = False
    dry_run: DryRun = False
    jobs: Jobs = 1
    engine: EngineName = "local"
    address: Address = None
    shard: ShardText = None
    layout: LayoutName = "v3.0"
    verify: VerifyName = "ends"
    save: Save = None
    overwrite: Overwrite = False
    staging: Staging = None

    def do(self, out: Output, wanted: Cuts) -> None:
        """Show the plans, or render; of several, all are planned before the first is rendered."""
        if self.in_place:
            self._do_in_place(out, next((m for t, m in wanted.items() if t is None), None))
            return
        cuts = {target: made for target, made in wanted.items() if target is not None}
        if len(cuts) < len(wanted):
            raise ArgumentError(
                "Where is the result to be written?",
                hint="give a folder OUT"
                + ("; or --in-place" if _is_versioned(next(iter(wanted.values()))) else ""),
            )
        from demoreel.edit.form import Form
        from demoreel.edit.render import plan_several, render_several

        engine, shard = _engine(self.engine, self.jobs, self.address), _shard(self.shard)
        if self.save is not None:
            _save(cuts, self.save)
        lists = {target: made.cutlist for target, made in cuts.items()}
        form = Form(**self._form)
        if self.dry_run:
            plans = plan_several(
                lists, form=form, overwrite=self.overwrite, verification=self.verify
            )
            show_plans(out, plans)
            return
        done = render_several(
            lists,
            form=form,
            overwrite=self.overwrite,
            progress=lambda target: out.progress(f"writing {name_of_place(target)}"),
            engine=engine,
            shard=shard,
            verification=self.verify,
        )
        show_results(out, done)

    def _do_in_place(self, out: Output, made: Cut | None) -> None:
        """Make a new version of the source, or show what that would be."""
        from demoreel.edit.form import Form
        from demoreel.edit.plan import make_plan

        if made is None:
            raise ArgumentError(
                "With --in-place nothing is written elsewhere.", hint="leave OUT out"
            )
        only_here(made.cutlist.sources[0].path, "--in-place")
        if Form(**self._form) != Form() or self.shard is not None or self.jobs > 1:
            raise ArgumentError(
                "--in-place changes rows and metadata, in this process: no layout, codec, rate, "
                "jobs or shard can be chosen.",
                hint="leave them out, or write a new dataset",
            )
        if self.save is not None:
            made.save(self.save)
        if self.dry_run:
            root = made.cutlist.sources[0].path
            show_plans(out, {root: make_plan(made.cutlist, in_place=True)})
            return
        show_results(out, [made.render_in_place(verify=self.verify)])

    @property
    def _form(self) -> dict[str, Any]:
        return {"layout": self.layout, **self.chosen()}


def _verb(make: Callable[..., Cuts]) -> Callable[..., Cuts]:
    """Make a verb of a function that returns cuts: with the options of all, and what they do."""
    options = parameters_of(_Work)
    own = parameters_of(make, Cuts=Any)
    if not any(option.name == "out" and option.default is None for option in own):
        options = [option for option in options if option.name != "in_place"]

    @functools.wraps(make)
    def run(output: Output, /, **given: Any) -> None:
        work = _Work(**{option.name: given.pop(option.name) for option in options})
        work.do(output, make(**given))

    first = inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, annotation=Output)
    app.command()(command(with_parameters(run, [first, *own, *options])))
    return make


@_verb
def delete(
    path: DatasetPath,
    *,
    out: TargetOrNone = None,
    episodes: Annotated[
        str, typer.Option("--episodes", "-e", metavar="LIST", help="E.g. 3,40,77 or 0:10,90.")
    ],
) -> Cuts:
    """Leave episodes out."""
    made = _begun(path).delete(episode_numbers(episodes))
    return {out: made}


@_verb
def select(
    path: DatasetPath,
    *,
    out: TargetOrNone = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="SQL",
            help="A condition, e.g. \"length > 100 and task like '%cup%'\".",
        ),
    ] = None,
    order_by: Annotated[
        str | None, typer.Option("--order-by", metavar="SQL", help="E.g. 'length desc'.")
    ] = None,
    episodes: Annotated[
        str | None, typer.Option("--episodes", "-e", metavar="LIST", help="Only these, so ordered.")
    ] = None,
) -> Cuts:
    """Take the episodes that meet a condition, in any order."""
    made = _begun(path)
    if episodes is not None:
        made = made.keep(episode_numbers(episodes))
    if where is not None or order_by is not None or episodes is None:
        made = made.select(where, order_by=order_by)
    return {out: made}


@_verb
def trim(
    path: DatasetPath,
    *,
    out: TargetOrNone = None,
    episode: Annotated[
        int | None, typer.Option("--episode", "-e", metavar="N", help="Which one.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", metavar="TIME", help="36 frames, or 1.2s.")
    ] = None,
    stop: Annotated[
        str | None, typer.Option("--stop", metavar="TIME", help="Not in it any more.")
    ] = None,
    idle: Annotated[
        bool, typer.Option("--idle", help="Trim the ends of all episodes where nothing moves.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="For --idle: the feature that moves.  [default: observation.state and action]",
        ),
    ] = None,
) -> Cuts:
    """Keep only a span of an episode, or only where something moves."""
    if not idle and (episode is None or (start is None and stop is None)):
        raise ArgumentError("trim needs --episode with --start or --stop, or --idle.")
    made = _begun(path)
    if idle:
        made = made.trim_idle(key)
    if episode is not None:
        made = made.trim(episode, _time(start), _time(stop))
    return {out: made}


@_verb
def tasks(
    path: DatasetPath,
    *,
    out: TargetOrNone = None,
    set_: Annotated[
        str | None, typer.Option("--set", metavar="TEXT", help="One task for all.")
    ] = None,
    replace: Annotated[
        list[str] | None, typer.Option("--replace", metavar="OLD=NEW", help="May be repeated.")
    ] = None,
    episode: Annotated[
        list[str] | None, typer.Option("--episode", "-e", metavar="N=TEXT", help="Likewise.")
    ] = None,
) -> Cuts:
    """Give tasks other texts."""
    made = _begun(path)
    if set_ is None and not replace and not episode:
        raise ArgumentError("tasks needs --set, --replace or --episode.")
    if set_ is not None:
        made = made.retask(set_)
    if replace:
        made = made.retask(dict(_pair(text, "--replace OLD=NEW") for text in replace))
    if episode:
        pairs = [_pair(text, "--episode N=TEXT") for text in episode]
        made = made.retask({_number(number): text for number, text in pairs})
    return {out: made}


@_verb
def label(
    path: DatasetPath,
    *,
    out: TargetOrNone = None,
    episodes: Annotated[
        str | None, typer.Option("--episodes", "-e", metavar="LIST", help="Of which the rest is.")
    ] = None,
    success: Annotated[
        bool | None, typer.Option("--success/--failure", help="Whether the task was done.")
    ] = None,
    score: Annotated[
        int | None, typer.Option("--score", min=1, max=5, metavar="N", help="From 1 to 5.")
    ] = None,
    flag: Annotated[
        Literal["good", "bad"] | None, typer.Option("--flag", help="What is said of them.")
    ] = None,
    annotations: Annotated[
        Path | None,
        typer.Option(
            "--annotations",
            metavar="FILE",
            help="A lerobot_annotations.json, whose language goes into the columns.",
        ),
    ] = None,
) -> Cuts:
    """Note success and ratings of episodes, or add annotations."""
    made, said = _begun(path), (success, score, flag)
    if (episodes is None) != (said == (None, None, None)) or (episodes, annotations) == (
        None,
        None,
    ):
        raise ArgumentError("label needs --episodes with --success, --score or --flag, or a file.")
    if annotations is not None:
        made = made.annotate(annotations)
    if episodes is not None:
        made = made.label(episode_numbers(episodes), success=success, score=score, flag=flag)
    return {out: made}


@_verb
def features(
    path: DatasetPath,
    *,
    out: TargetOrNone = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="KEY", help="May be repeated.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="Likewise.")
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add", metavar="[KEY=]FILE.npy", help="One row a frame of the source. Likewise."
        ),
    ] = None,
) -> Cuts:
    """Remove, rename and add features."""
    if not remove and not rename and not add:
        raise ArgumentError("features needs --remove, --rename or --add.")
    made = _begun(path)
    if remove:
        made = made.remove(*remove)
    if rename:
        made = made.rename(dict(_pair(text, "--rename OLD=NEW") for text in rename))
    for text in add or []:
        name, values = text.split("=", 1) if "=" in text else (Path(text).stem, text)
        made = made.add(name, values)
    return {out: made}


@_verb
def merge(
    paths: DatasetPaths,
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="OUT", help="The folder to make, or a URI.", parser=place
        ),
    ],
    together: Together = "strict",
) -> Cuts:
    """Put datasets one behind the other."""
    made = _begun(paths[0]).merge(*paths[1:], features=together)
    return {out: made}


@_verb
def split(
    path: DatasetPath,
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="The folder for the parts, or a URI.", parser=place)
    ],
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=PART...",
            help="Shares (train=0.8 val=0.2), or places (train=0:80 val=80:100).",
        ),
    ] = None,
    by: Annotated[Literal["task"] | None, typer.Option("--by", help="One part a task.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Shuffle before shares are taken.")
    ] = None,
) -> Cuts:
    """Split into several datasets, OUT/NAME each."""
    wanted = dict(_part(text) for text in parts or []) or None
    found = _begun(path).split(wanted, by=by, seed=seed)
    if by is not None:
        found = {_file_name(text, place): cut for place, (text, cut) in enumerate(found.items())}
    return {f"{out.rstrip('/')}/{name}": made for name, made in found.items()}


@_verb
def apply(
    cut_list: Annotated[Path, typer.Argument(metavar="LIST", help="A cut list (--save).")],
    out: Target,
) -> Cuts:
    """Render a cut list that is in a file."""
    from demoreel.edit.cut import load

    return {out: load(cut_list)}


@app.command()
@command
def commit(output: Output, out: Target, verify: VerifyName = "ends") -> None:
    """Make what shards have written one dataset."""
    from demoreel.edit.render import commit as finish

    only_here(out, "Ending the work of shards")
    show_results(output, [finish(out, verification=verify)])


def _begun(path: str) -> Cut:
    from demoreel.edit.cut import cut

    return cut(path)


def _is_versioned(made: Cut) -> bool:
    """Whether a cut is of a dataset in Lance, on this machine, which can be edited in place."""
    from demoreel.layouts.detect import open_reader

    source = made.cutlist.sources[0].path
    return not is_uri(source) and open_reader(Path(source)).layout.startswith("lance")


def _engine(name: EngineName, jobs: int, address: str | None) -> Engine:
    from demoreel.run.local import LocalEngine

    return engine_named(name, address) or LocalEngine(jobs)


def _save(cuts: dict[str, Cut], path: Path) -> None:
    if len(cuts) > 1:
        raise ArgumentError("--save is for one cut; each part would have a list of its own.")
    next(iter(cuts.values())).save(path)


def _number(text: str) -> int:
    if not text.isdigit():
        raise ArgumentError(f"{text!r} is no episode.")
    return int(text)


def _time(text: str | None) -> int | float | None:
    """Read ``36`` (frames), ``1.2s`` and ``1.2`` (seconds)."""
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        raise ArgumentError(f"{text!r} is no time like 1.2s, and no frame.") from None


def _pair(text: str, what: str) -> tuple[str, str]:
    before, equals, behind = text.partition("=")
    if not equals or not before:
        raise ArgumentError(f"{text!r} is not {what}.")
    return before, behind


def _part(text: str) -> tuple[str, float | range | list[int]]:
    name, part = _pair(text, "NAME=0.8 or NAME=0:80")
    if name != _file_name(name):
        raise ArgumentError(f"A part cannot be called {name!r}.", hint="letters, digits, _ . -")
    if re.fullmatch(r"\d*\.\d+|1|1\.", part):
        return name, float(part)
    return name, episode_numbers(part)


def _file_name(text: str, number: int | None = None) -> str:
    """Return a text as the name of a folder; with a number in front, it is the only such one."""
    plain = re.sub(r"[^\w.-]+", "_", text).strip("._-")[:60]
    return plain if number is None else f"{number:02d}-{plain}".rstrip("-")


def _shard(text: str | None) -> Shard | None:
    if text is None:
        return None
    from demoreel.edit.render import Shard

    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None:
        raise ArgumentError(f"{text!r} is no shard.", hint="0/4 is the first of four")
    return Shard(int(match[1]), int(match[2]))


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
