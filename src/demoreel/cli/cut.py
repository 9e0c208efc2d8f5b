"""``demoreel cut``: delete, split, merge, trim, tasks, features, select, apply, commit."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from demoreel.cli.cut_form import FormChoices
from demoreel.cli.options import DatasetPath, Debug, Json, Quiet
from demoreel.cli.output import Column, Output, count, size
from demoreel.errors import ArgumentError

if TYPE_CHECKING:
    from demoreel.edit.cut import Cut
    from demoreel.edit.plan import Plan
    from demoreel.edit.render import Rendered
    from demoreel.run.task import Engine

    Cuts = Mapping[Path, Cut] | Mapping[Path | None, Cut]

app = typer.Typer(
    name="cut",
    help="Make a new dataset out of episodes of others: no picture is encoded again.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

_FILES_SHOWN = 40

Target = Annotated[
    Path, typer.Argument(metavar="OUT", help="The folder to make.", show_default=False)
]
TargetOrNone = Annotated[
    Path | None,
    typer.Argument(
        metavar="OUT", help="The folder to make; none with --in-place.", show_default=False
    ),
]
InPlace = Annotated[
    bool,
    typer.Option("--in-place", help="Make a new version of the Lance dataset itself; no OUT."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and write nothing.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes to use.")]
EngineName = Annotated[
    Literal["local", "ray"], typer.Option("--engine", help="Where the work is done.")
]
Address = Annotated[
    str | None, typer.Option("--address", help="Of a Ray cluster to join.", show_default=False)
]
ShardText = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Do part I of N, counted from 0, and leave the rest; `demoreel cut commit` ends it.",
        show_default=False,
    ),
]
Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Write the cut list too.", show_default=False),
]
VerifyName = Annotated[
    Literal["ends", "full", "none"],
    typer.Option(
        "--verify", help="Compare each clip's first and last frame, all frames, or nothing."
    ),
]
LayoutName = Annotated[
    Literal["v3.0", "v2.1", "lance-video", "lance-native", "lance-frames"],
    typer.Option("--layout", help="How OUT is to lie on disk."),
]
Together = Annotated[
    Literal["strict", "common", "union"],
    typer.Option("--features", help="What to do with features that only some datasets have."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work(FormChoices):
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
    json: Json = False
    quiet: Quiet = False
    debug: Debug = False

    def do(self, wanted: Cuts) -> None:
        """Show the plans, or render; of several, all are planned before the first is rendered."""
        out = Output(json=self.json, quiet=self.quiet, debug=self.debug)
        if self.in_place:
            self._do_in_place(out, next((m for t, m in wanted.items() if t is None), None))
            return
        cuts = {target: made for target, made in wanted.items() if target is not None}
        if len(cuts) < len(wanted):
            raise ArgumentError(
                "Where is the result to be written?",
                hint="give a folder OUT; or --in-place, if the dataset lies in Lance",
            )
        engine, shard = _engine(self.engine, self.jobs, self.address), _shard(self.shard)
        if self.save is not None:
            _save(cuts, self.save)
        plans = {}
        if self.dry_run or len(cuts) > 1:
            plans = {target: made.plan(**self._form) for target, made in cuts.items()}
        if self.dry_run:
            _show_plans(out, plans)
            return
        done = []
        for target, made in cuts.items():
            with out.progress(f"writing {target.name}") as report:
                done.append(
                    made.render(
                        target,
                        engine=engine,
                        shard=shard,
                        verify=self.verify,
                        report=report,
                        **self._form,
                    )
                )
        _show_results(out, done)

    def _do_in_place(self, out: Output, made: Cut | None) -> None:
        """Make a new version of the source, or show what that would be."""
        from demoreel.edit.plan import make_plan
        from demoreel.edit.target_info import Form

        if made is None:
            raise ArgumentError(
                "With --in-place nothing is written elsewhere, and only one dataset is changed.",
                hint="leave OUT out; split, merge and apply write new datasets",
            )
        if Form(**self._form) != Form() or self.shard is not None or self.jobs > 1:
            raise ArgumentError(
                "--in-place changes rows and metadata, in this process: no layout, codec, rate, "
                "jobs or shard can be chosen.",
                hint="leave them out, or write a new dataset",
            )
        if self.save is not None:
            made.save(self.save)
        if self.dry_run:
            root = Path(made.cutlist.sources[0].path)
            _show_plans(out, {root: make_plan(made.cutlist, in_place=True)})
            return
        _show_results(out, [made.render_in_place(verify=self.verify)])

    @property
    def _form(self) -> dict[str, Any]:
        return {"layout": self.layout, **self.chosen()}


def _verb(make: Callable[..., Cuts]) -> Callable[..., Cuts]:
    """Make a verb of a function that returns cuts: with the options of all, and what they do."""
    options = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default)
        for f in fields(_Work)
    ]
    own = inspect.signature(make)

    @functools.wraps(make)
    def run(**given: Any) -> None:
        work = _Work(**{option.name: given.pop(option.name) for option in options})
        work.do(make(**given))

    free = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own.parameters.values()]
    hints = get_type_hints(make, globals(), include_extras=True, localns={"Cuts": Any})
    hints |= get_type_hints(_Work, include_extras=True)
    every = [p.replace(annotation=hints[p.name]) for p in (*free, *options)]
    verb: Any = run  # functions may carry a signature, though their type does not say so
    verb.__signature__ = inspect.Signature(every)
    verb.__annotations__ = {p.name: p.annotation for p in every}
    app.command()(verb)
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
    made = _begun(path).delete(_numbers(episodes))
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
            show_default=False,
        ),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option("--order-by", metavar="SQL", help="E.g. 'length desc'.", show_default=False),
    ] = None,
    episodes: Annotated[
        str | None,
        typer.Option(
            "--episodes", "-e", metavar="LIST", help="Only these, so ordered.", show_default=False
        ),
    ] = None,
) -> Cuts:
    """Take the episodes that meet a condition, perhaps in another order."""
    made = _begun(path)
    if episodes is not None:
        made = made.keep(_numbers(episodes))
    if where is not None or order_by is not None or episodes is None:
        made = made.select(where, order_by=order_by)
    return {out: made}


@_verb
def trim(
    path: DatasetPath,
    *,
    out: TargetOrNone = None,
    episode: Annotated[
        int | None,
        typer.Option("--episode", "-e", metavar="N", help="Which one.", show_default=False),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="TIME", help="36 frames, or 1.2s.", show_default=False),
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option("--stop", metavar="TIME", help="Not in it any more.", show_default=False),
    ] = None,
    idle: Annotated[
        bool, typer.Option("--idle", help="Trim the ends of all episodes where nothing moves.")
    ] = False,
    key: Annotated[
        str, typer.Option("--key", metavar="KEY", help="For --idle: the feature that moves.")
    ] = "action",
) -> Cuts:
    """Keep only a stretch of an episode, or only where something moves."""
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
        str | None,
        typer.Option("--set", metavar="TEXT", help="One task for all.", show_default=False),
    ] = None,
    replace: Annotated[
        list[str] | None,
        typer.Option("--replace", metavar="OLD=NEW", help="May be repeated.", show_default=False),
    ] = None,
    episode: Annotated[
        list[str] | None,
        typer.Option("--episode", "-e", metavar="N=TEXT", help="Likewise.", show_default=False),
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
def features(
    path: DatasetPath,
    *,
    out: TargetOrNone = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="KEY", help="May be repeated.", show_default=False),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="OLD=NEW", help="Likewise.", show_default=False),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add",
            metavar="[KEY=]FILE.npy",
            help="One row a frame of the source. Likewise.",
            show_default=False,
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
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Datasets.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="The folder to make.")],
    together: Together = "strict",
) -> Cuts:
    """Put datasets one behind the other."""
    made = _begun(paths[0]).merge(*paths[1:], features=together)
    return {out: made}


@_verb
def split(
    path: DatasetPath,
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="The folder for the parts.", show_default=False),
    ],
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=PART...",
            help="Shares (train=0.8 val=0.2), or places (train=0:80 val=80:100).",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        Literal["task"] | None, typer.Option("--by", help="One part a task.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Shuffle before shares are taken.", show_default=False),
    ] = None,
) -> Cuts:
    """Split into several datasets, OUT/NAME each."""
    wanted = dict(_part(text) for text in parts or []) or None
    found = _begun(path).split(wanted, by=by, seed=seed)
    if by is not None:
        found = {_file_name(text, place): cut for place, (text, cut) in enumerate(found.items())}
    return {out / name: made for name, made in found.items()}


@_verb
def apply(
    cut_list: Annotated[
        Path, typer.Argument(metavar="LIST", help="A cut list (--save).", show_default=False)
    ],
    out: Target,
) -> Cuts:
    """Render a cut list that lies in a file."""
    from demoreel.edit.cut import load

    return {out: load(cut_list)}


@app.command()
def commit(
    out: Target,
    verify: VerifyName = "ends",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make what shards have written one dataset."""
    from demoreel.edit.render import commit as finish

    shown = Output(json=json, quiet=quiet, debug=debug)
    _show_results(shown, [finish(out, verification=verify)])


def _begun(path: Path) -> Cut:
    from demoreel.edit.cut import cut

    return cut(path)


def _engine(name: str, jobs: int, address: str | None) -> Engine:
    if name == "ray":
        from demoreel.run.ray import RayEngine

        return RayEngine(address=address)
    if address is not None:
        raise ArgumentError("--address is for --engine ray.")
    from demoreel.run.local import LocalEngine

    return LocalEngine(jobs)


def _save(cuts: dict[Path, Cut], path: Path) -> None:
    if len(cuts) > 1:
        raise ArgumentError("--save is for one cut; each part would have a list of its own.")
    next(iter(cuts.values())).save(path)


def _show_plans(out: Output, plans: dict[Path, Plan]) -> None:
    found = [_plan_facts(plan, target) for target, plan in plans.items()]
    if out.json:
        out.result(found[0] if len(found) == 1 else {"parts": found})
        return
    for facts in found:
        said = f"{count(facts['episodes'], 'episode')}, {count(facts['frames'], 'frame')}"
        out.line(f"{facts['path']}: {said}, {size(facts['bytes'])}")
        for camera, frames in facts["encoded_frames"].items():
            out.line(f"  {camera}: {count(frames, 'frame')} to be encoded")
        for camera, clips in facts["black_clips"].items():
            out.line(f"  {camera}: {count(clips, 'episode')} to be black")
        files = facts["files"]
        rows = [(file["path"], size(file["bytes"])) for file in files[:_FILES_SHOWN]]
        out.table([Column("file"), Column("bytes", right=True)], rows)
        if len(files) > _FILES_SHOWN:
            out.note(f"and {len(files) - _FILES_SHOWN:,} more; --json shows all")


def _plan_facts(plan: Plan, target: Path) -> dict[str, Any]:
    files = _files(plan, target)
    clips = [
        {"source": c.source, "episode": c.episode, "start": c.start, "stop": c.stop}
        for c in plan.clips
    ]
    sources = [source.path for source in plan.cutlist.sources]
    return {
        "path": str(target),
        **plan.summary(),
        "sources": sources,
        "clips": clips,
        "files": files,
    }


def _files(plan: Plan, target: Path) -> list[dict[str, Any]]:
    """Return the tables and videos that a plan writes; of Lance, the tables that they go to."""
    from demoreel.edit.lance_result import tables_for

    lance = tables_for(plan.layout, target.name, plan.info)
    if lance is None:
        files = [{"path": t.path(plan.info), "bytes": t.size} for t in plan.tables]
        return files + [{"path": v.path(plan.info), "bytes": v.size} for v in plan.videos]
    in_place = str(target) == plan.cutlist.sources[0].path
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
        **version,
    }


def _show_results(out: Output, done: list[Rendered]) -> None:
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
        if each.resumed:
            out.note(f"{count(each.resumed, 'file')} had been written before")


def _numbers(text: str) -> list[int]:
    """Read ``3,40,77`` and ``0:10,90``."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?::(\d+))?\s*", part)
        if match is None:
            raise ArgumentError(f"{part!r} is no episode, and no range like 0:10.")
        first = int(match[1])
        found += range(first, int(match[2])) if match[2] else [first]
    return found


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
    return name, _numbers(part)


def _file_name(text: str, number: int | None = None) -> str:
    """Return a text as the name of a folder; with a number in front, it is the only such one."""
    plain = re.sub(r"[^\w.-]+", "_", text).strip("._-")[:60]
    return plain if number is None else f"{number:02d}-{plain}".rstrip("-")


def _shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None:
        raise ArgumentError(f"{text!r} is no shard.", hint="0/4 is the first of four")
    return int(match[1]), int(match[2])
