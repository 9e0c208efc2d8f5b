"""One case: a copy of a dataset is damaged, opened, checked and repaired, and all of it judged."""

from __future__ import annotations

import random
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

import demoreel
from demoreel.errors import DemoreelError
from demoreel.testing.stamp import Stamp
from support.fuzz.damage import damage_file, replace_file, replace_folder
from support.fuzz.hostile import attack_metadata
from support.fuzz.witness import changed, is_blurred, mixed_up, snapshot

Fault = Literal[
    "crash", "endless", "memory", "exception", "wrong data", "wrong repair", "write", "leftover"
]
_MOST_FRAMES = 40
_TARGET, _SET = "repaired", "set"


@dataclass(frozen=True, slots=True)
class Case:
    """What to damage, and how.

    Attributes:
        base: The dataset's name in ``BASES``.
        seed: Says how it is damaged.
    """

    base: str
    seed: int


@dataclass
class Verdict:
    """What came of a case.

    Attributes:
        case: The case.
        damage: What was done to the dataset.
        faults: What may not be, with the reason: the interpreter crashed, the case did not end, it
            took too much memory, an exception that is no error of demoreel escaped, an image or
            row was taken for another, a repaired dataset that is called clean is not, something
            outside of the target was written, or something was left behind.
        unforeseen: What checks stumbled over: they said so in a finding, but did not expect it.
        outcome: How opening, checking and repairing ended, a word each.
    """

    case: Case
    damage: str = ""
    faults: list[tuple[Fault, str]] = field(default_factory=list)
    unforeseen: list[str] = field(default_factory=list)
    outcome: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        ends = ", ".join(f"{what}: {end}" for what, end in self.outcome.items())
        lines = [f"{self.case.base} {self.case.seed}: {self.damage} -> {ends}"]
        lines += [f"  {fault}: {why}" for fault, why in self.faults]
        return "\n".join(lines + [f"  unforeseen: {text}" for text in self.unforeseen])


def damage(case: Case, bases: dict[str, Path], folder: Path) -> tuple[Path, str]:
    """Put a damaged copy of the case's base into a folder; return its place and what was done."""
    chance = random.Random(f"{case.base}/{case.seed}")
    root = Path(shutil.copytree(bases[case.base], folder / _SET))
    kind = chance.random()
    if kind < 0.30:
        return root, attack_metadata(root, chance)
    if kind < 0.34:
        return root, replace_file(root, chance)
    if kind < 0.37:
        return root, replace_folder(root, chance)
    done = [damage_file(root, chance) for _ in range(1 if chance.random() < 0.85 else 3)]
    return root, "; ".join(done)


def run_case(case: Case, bases: dict[str, Path], work: Path) -> Verdict:
    """Run a case in this process, which it may take down. Costs about half a second.

    Args:
        case: The case.
        bases: Where the bases are.
        work: A folder to work in; what the case makes there is removed again.
    """
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=work))
    verdict = Verdict(case)
    try:
        root, verdict.damage = damage(case, bases, folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            blurred = is_blurred(bases[case.base], root)
            _use(verdict, root, folder, deep=case.seed % 5 == 0, blurred=blurred)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def _use(verdict: Verdict, root: Path, folder: Path, *, deep: bool, blurred: bool) -> None:
    before = snapshot(folder)
    # Opening comes last: it may finish a commit that a recording left, and so write.
    guarded(verdict, "check", lambda: _check(verdict, root, deep))
    guarded(verdict, "repair", lambda: _repair(verdict, root, folder / _TARGET, deep, blurred))
    _compare(verdict, before, snapshot(folder, leave_out=frozenset({_TARGET})))
    guarded(verdict, "open", lambda: _read(verdict, root, blurred))
    after = snapshot(folder, leave_out=frozenset({_TARGET}))
    mine = f"{_SET}/"
    _compare(
        verdict,
        {name: what for name, what in before.items() if not name.startswith(mine)},
        {name: what for name, what in after.items() if not name.startswith(mine)},
    )


def guarded(verdict: Verdict, name: str, work: Callable[[], str]) -> None:
    """Do some work and note what came of it; what may not escape is a fault."""
    try:
        verdict.outcome[name] = work()
    except DemoreelError as error:
        verdict.outcome[name] = type(error).__name__
    except OSError as error:
        verdict.outcome[name] = f"OSError {error.errno}"
        if error.errno is None:
            verdict.faults.append(("exception", f"{name}: {_told(error)}"))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        verdict.outcome[name] = type(error).__name__
        verdict.faults.append(("exception", f"{name}: {_told(error)}"))


def _told(error: BaseException) -> str:
    """Say what was raised, and by which lines of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "demoreel" in f.filename]
    last = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
    return f"{type(error).__name__}: {str(error)[:200]!r} at {' '.join(ours[-5:])} ({last})"


def _check(verdict: Verdict, root: Path, deep: bool) -> str:
    report = demoreel.check(root, deep=deep)
    str(report)
    _note_unforeseen(verdict, report, "check")
    return report.worst or "clean"


def _note_unforeseen(verdict: Verdict, report: Any, when: str) -> None:
    verdict.unforeseen += [f"{when}: {finding.what}" for finding in report.of("check-failed")]


def _repair(verdict: Verdict, root: Path, target: Path, deep: bool, blurred: bool) -> str:
    done = demoreel.repair(root, target, deep=deep, drop_episodes=True)
    if done.after is not None:
        _note_unforeseen(verdict, done.after, "after repair")
    if not done.is_clean:
        return f"{done.episodes} episodes, {done.after.worst if done.after else None}"
    dataset = demoreel.open(target)
    for index in range(min(len(dataset), _MOST_FRAMES)):
        try:
            wrong = mixed_up(dataset[index], dataset.info.cameras, None, is_blurred=blurred)
        except DemoreelError as error:
            if deep:  # else the images were not looked at
                verdict.unforeseen.append(f"clean after repair, but frame {index}: {error.what}")
                break
            continue
        if wrong is not None:
            verdict.faults.append(("wrong repair", f"frame {index}: {wrong}"))
            break
    return f"{done.episodes} episodes, clean"


def _read(verdict: Verdict, root: Path, blurred: bool) -> str:
    """Read the first, the last and a middle frame of every episode, and judge them."""
    dataset = demoreel.open(root)
    good, failed = 0, 0
    for index in _some_frames(dataset):
        try:
            item = dataset[index]
        except (DemoreelError, OSError):
            failed += 1
            continue
        good += 1
        asked = _asked_for(dataset, index)
        wrong = mixed_up(item, dataset.info.cameras, asked, is_blurred=blurred)
        if wrong is not None:
            verdict.faults.append(("wrong data", f"frame {index}: {wrong}"))
    return f"{good} of {good + failed} frames"


def _asked_for(dataset: Any, index: int) -> Stamp:
    """Return which frame an index means, by the dataset's own list of episodes."""
    episodes = dataset.episodes
    position = int(np.searchsorted(episodes.start, index, side="right")) - 1
    return Stamp(int(episodes.episode_index[position]), index - int(episodes.start[position]))


def _some_frames(dataset: Any) -> list[int]:
    starts, lengths = dataset.episodes.start.tolist(), dataset.episodes.length.tolist()
    found: set[int] = set()
    for start, length in zip(starts, lengths, strict=False):
        if len(found) > _MOST_FRAMES:
            break
        found |= {start, start + length // 2, start + length - 1}
    return sorted(index for index in found if 0 <= index < len(dataset))


def _compare(verdict: Verdict, before: dict[str, str], after: dict[str, str]) -> None:
    names = changed(before, after)
    if names and not any(fault in ("write", "leftover") for fault, _ in verdict.faults):
        fault: Fault = "leftover" if all(name not in before for name in names) else "write"
        verdict.faults.append((fault, ", ".join(names[:5])))
