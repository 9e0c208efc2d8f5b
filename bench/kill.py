"""Kill recordings at random instants and look at what they leave.

    .venv/bin/python bench/kill.py [--rounds 1000] [--at-once 2] [--seed 0]

Each round continues with a dataset where the one before was killed: it records small episodes one
after the other, with encoders in processes of their own and files merged meanwhile, and is killed
with SIGKILL; encoders are killed on the way, too. Then every file is looked at: all that
`save_episode` returned from must be there, and at most the one episode more that was being saved;
counts must agree in every metadata file;
every row of numbers and every new image must be the one that was recorded. Every fourth round
records for longer, so that merges are killed, too. After some dozen episodes all images of the
dataset are looked at, and a new one begins. Ends with exit status 1 at the first round where
something is not so, and says how to repeat it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

from support.crash import check_whole, episodes_in, killed
from support.crash_recording import begin_crash_recording, record_for_ever

EPISODES_IN_ONE = 40  # then a new dataset: checking all of a long one takes longer than recording
FEW, MANY = 4, 24  # episodes that a round may save before it is killed
# In which share of them an encoder is killed; each time another must start, a third of a second.
OFTEN, SELDOM = 0.2, 0.04
_PR_SET_CHILD_SUBREAPER = 36
LOADED = ("support.crash_recording", "demoreel.record.recorder", "demoreel.media.remux")


@dataclass
class Count:
    """What came of some rounds."""

    rounds: int = 0
    saved: int = 0
    more: int = 0
    datasets: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2, help="recordings side by side")
    options = parser.parse_args()
    begin = time.monotonic()
    if options.at_once > 1:
        return side_by_side(options)
    adopt_orphans()
    forkserver.set_forkserver_preload([*LOADED])  # so that a recording begins at once
    forkserver.ensure_running()
    with tempfile.TemporaryDirectory(prefix="demoreel-kill-") as scratch:
        count = kill_rounds(Path(scratch), options.rounds, options.seed)
    if count is None:
        return 1
    print(
        f"{count.rounds} kills, {count.saved} episodes saved in {count.datasets} datasets, 0 lost, "
        f"{count.more} times the episode that was being saved is there too; "
        f"{time.monotonic() - begin:.0f} s, {cpu_seconds():.0f} s of a processor"
    )
    return 0


def adopt_orphans() -> None:
    """Become the parent of encoders whose recorder was killed, to know what they have cost."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def cpu_seconds() -> float:
    """Return what this process and all that it has started have taken of a processor."""
    forkserver._forkserver._stop()  # recorders are its children, and count when it ends
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def side_by_side(options: argparse.Namespace) -> int:
    """Share the rounds out over processes; each has datasets of its own."""
    lanes = []
    for lane in range(options.at_once):
        rounds = len(range(lane, options.rounds, options.at_once))
        command = [sys.executable, __file__, "--at-once", "1", "--rounds", str(rounds)]
        lanes.append(subprocess.Popen([*command, "--seed", str(options.seed + 100_000 * lane)]))
    return max(lane.wait() for lane in lanes)


def kill_rounds(scratch: Path, rounds: int, seed: int) -> Count | None:
    """Kill so often; return what came of it, or None where something was lost."""
    instant, count, there, root = random.Random(seed), Count(), 0, Path()
    for number in range(rounds):
        if number == 0 or there > EPISODES_IN_ONE:
            if number and check_whole(root) != there:
                return failed(number, seed, f"{there} were there, and a moment later are not")
            root, there = scratch / f"dataset-{number}", 0
            begin_crash_recording(root, cameras=2 if count.datasets % 3 == 1 else 1).finalize()
            count.datasets += 1
        most, kills = (MANY, SELDOM) if number % 4 == 3 else (FEW, OFTEN)
        reports = killed(
            record_for_ever,
            root,
            seed + number,
            500,
            kills,
            reports=instant.randrange(most),
            then=instant.uniform(0, 2),
        )
        safe = there + len(reports)
        found = episodes_in(root, check=check_whole, images_from=max(0, there - 1))
        if reports != list(range(there, safe)) or found not in (safe, safe + 1):
            return failed(number, seed, f"{safe} were saved, {found} are there")
        count.rounds, count.saved = number + 1, count.saved + len(reports)
        count.more, there = count.more + (found > safe), found
        if number % 10 == 9:
            print(f"{number + 1} rounds, {count.saved} episodes, none lost", file=sys.stderr)
    return count


def failed(number: int, seed: int, what: str) -> None:
    """Say what was lost, and how to see it again."""
    print(f"round {number}: {what}", file=sys.stderr)
    print(f"again: --at-once 1 --seed {seed} --rounds {number + 1}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
