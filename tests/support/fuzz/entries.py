"""Every way into a dataset, as a function of its folder: what hostile ones are tried with.

``ENTRIES`` is the one list. A test compares it with the verbs of the command and the functions of
the package: a new way in must be added here, or say in ``NOT_TRIED`` why it reads no dataset of
a stranger.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import demoreel
from demoreel.cli.app import run as run_command
from demoreel.errors import DemoreelError

Place = Path | str
"""A folder, or the URI of one in a store."""

Use = Callable[[Place, Path], str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A way in.

    Attributes:
        use: Uses a dataset and a folder to write to; returns a word about what came of it.
        covers: The verbs and functions of the package that it goes through.
        local: Whether it is for folders of this machine alone.
    """

    use: Use
    covers: tuple[str, ...]
    local: bool = False


NOT_TRIED: Mapping[str, str] = {
    "create": "begins with an empty folder",
    "record": "is create or resume, and both are here",
    "errors": "is a module",
    "lance": "is a module",
}
"""What of the package is no way in, and why."""


def _read(root: Place, out: Path) -> str:
    dataset = demoreel.open(root)
    good = 0
    for index in sorted({0, len(dataset) // 2, len(dataset) - 1}):
        with contextlib.suppress(DemoreelError):
            good += bool(dataset[index])
    return f"{good} frames"


def _torch(root: Place, out: Path) -> str:
    from demoreel.torch import LeRobotDataset

    dataset = LeRobotDataset("stranger/set", root=root)
    return f"{len(dataset[0])} keys"


def _lance_class(root: Place, out: Path) -> str:
    from demoreel.torch import LeRobotLanceDataset, LeRobotLanceVideoDataset

    kind = LeRobotLanceDataset if "lance-frames" in str(root) else LeRobotLanceVideoDataset
    return f"{len(kind(root=root)[0])} keys"


def _stream(root: Place, out: Path) -> str:
    from demoreel.torch import StreamingLeRobotDataset

    return f"{len(next(iter(StreamingLeRobotDataset('stranger/set', root=root))))} keys"


def _mix(root: Place, out: Path) -> str:
    config = out / "mix.json"
    config.write_text(json.dumps({"parts": [str(root), {"source": str(root), "name": "again"}]}))
    return _command("mix", str(config), "--json")(root, out)


def _pull(root: Place, out: Path) -> str:
    if isinstance(root, Path):
        return "not in a store"
    pulled = demoreel.pull(root, out / "pulled")
    demoreel.pull(root, out / "some", episodes=[0])
    return f"{pulled.files} files"


def _resume(root: Place, out: Path) -> str:
    import shutil

    copy = out / "resumed"
    shutil.copytree(root, copy, symlinks=True)
    with demoreel.resume(copy):
        return "resumed"


def _recompute(root: Place, out: Path) -> str:
    import shutil

    copy = out / "recomputed"
    shutil.copytree(root, copy, symlinks=True)
    demoreel.recompute_stats(copy)
    return "recomputed"


def _finish(root: Place, out: Path) -> str:
    import shutil

    copy = out / "finished"
    shutil.copytree(root, copy, symlinks=True)
    return f"{len(demoreel.finish(copy).episodes)} episodes"


def _cut(root: Place, out: Path) -> str:
    demoreel.cut(root).delete([0]).render(out / "cut")
    return "cut"


def _diff(root: Place, out: Path) -> str:
    return "same" if demoreel.diff(root, root, pixels="all").is_equal else "differs"


def _check(root: Place, out: Path) -> str:
    report = demoreel.check(root, deep=True)
    text = str(report)
    assert "check-failed" not in report.counts, text[:2000]
    return report.worst or "clean"


def _view(root: Place, out: Path) -> str:
    """What the viewer's pages ask for: an error of ours, or an answer."""
    from demoreel.view.datasets import Shown, camera_facts, describe
    from demoreel.view.episodes import EpisodePages, columns_message
    from demoreel.view.frames import frame_image
    from demoreel.view.jobs import Jobs
    from demoreel.view.measures import EpisodeMeasures
    from demoreel.view.packets import packets_message

    (shown,) = Shown([str(root)], {}).list()
    shown.summary()
    described = describe(shown)
    dataset = shown.open()
    pages = EpisodePages(dataset)
    page = pages.page(0, 100, sort="task")
    jobs = Jobs()
    table, job = EpisodeMeasures(jobs, out / "measures").of(shown.id, dataset)
    if job is not None:
        job.wait()
        assert job.to_json()["state"] == "done", job.to_json()["result"]
    table.plots(None)
    table.outliers()
    episode = page["rows"][0]["index"]
    pages.motion([episode])
    columns_message(dataset, episode, ["timestamp"])
    position = dataset.reader.episodes.position_of(episode)
    for camera in dataset.cameras:
        if camera_facts(dataset, position, camera)["way"] == "packets":
            packets_message(dataset.reader.clip(position, camera), 0, 1)
        frame_image(dataset, episode, camera, 0, 64)
    return f"{described['episodes']} episodes"


def _command(*arguments: str) -> Use:
    def use(root: Place, out: Path) -> str:
        said = io.StringIO()
        words = [word.format(root=root, out=out) for word in arguments]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = run_command(words)
        assert "Traceback" not in said.getvalue(), said.getvalue()[-2000:]
        return f"exit {code}"

    return use


def _push(root: Place, out: Path) -> str:
    before = os.environ.get("HF_ENDPOINT")
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # there is nothing: a plan ends there
    try:
        return str(demoreel.push(root, "someone/something", dry_run=True))
    finally:
        os.environ.pop("HF_ENDPOINT") if before is None else os.environ.update(HF_ENDPOINT=before)


ENTRIES: Mapping[str, Entry] = {
    "open": Entry(_read, ("open",)),
    "LeRobotDataset": Entry(_torch, ("LeRobotDataset",)),
    "lance class": Entry(_lance_class, ()),
    "stream": Entry(_stream, ()),
    "pull": Entry(_pull, ("pull",)),
    "info": Entry(_command("info", "{root}", "--json"), ("info",)),
    "episodes": Entry(_command("episodes", "{root}"), ("episodes",)),
    "frame": Entry(_command("frame", "{root}", "0", "--output", "{out}/frame.png"), ("frame",)),
    "bench": Entry(_command("bench", "{root}", "--seconds", "0.1"), ("bench",)),
    "sql": Entry(_command("sql", "{root}", "select count(*), max(note) from frames"), ("sql",)),
    "stats": Entry(_command("stats", "{root}", "--json"), ("stats",)),
    "check": Entry(_check, ("check",)),
    "repair": Entry(_command("repair", "{root}", "{out}/repaired"), ("repair",)),
    "convert": Entry(_command("convert", "{root}", "{out}/v3", "--to", "v3.0"), ("convert",)),
    "lance": Entry(
        _command("convert", "{root}", "{out}/lance", "--to", "lance-video"),
        ("convert_to_lance", "convert_to_lance_video"),
    ),
    "mix": Entry(_mix, ("mix",)),
    "view": Entry(_view, ("view",)),
    "cut": Entry(_cut, ("cut",)),
    "diff": Entry(_diff, ("diff",)),
    "resume": Entry(_resume, ("resume",), local=True),
    "recompute_stats": Entry(_recompute, ("recompute_stats",), local=True),
    "finish": Entry(_finish, ("finish",), local=True),
    "clean": Entry(_command("clean", "{root}", "--dry-run"), ("clean",), local=True),
    "push": Entry(_push, ("push",), local=True),
    "versions": Entry(_command("versions", "{root}"), ("versions",)),
    "tag": Entry(_command("tag", "{root}", "mine"), ("tag",), local=True),
    "checkout": Entry(_command("checkout", "{root}", "1"), ("checkout",), local=True),
}
"""Every way into a dataset."""


WRITERS = frozenset({"tag", "checkout"})
"""The entries that change the dataset that they are given."""


def uncovered(verbs: Sequence[str]) -> list[str]:
    """Return the verbs and functions that no entry goes through, and that are not excused."""
    covered = {name for entry in ENTRIES.values() for name in entry.covers} | set(NOT_TRIED)
    public = [name for name in demoreel.__all__ if name[0].islower()]
    return [name for name in [*verbs, *public] if name not in covered]
