"""Kill recordings at random instants and look at what they leave.

    .venv/bin/python bench/kill.py [--rounds 1000] [--seed 0]

Each round records into the same dataset, small episodes one after the other, is killed with
SIGKILL, and every file is checked: all that `save_episode` returned from must be there, bit for
bit, and at most the one episode more that was being saved. Ends with exit status 1 at the first
round where something is not so.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from demoreel.testing.crash import check_whole, episodes_in, killed
from demoreel.testing.crash_recording import begin_crash_recording, record_for_ever

EPISODES_IN_ONE = 400  # then a new dataset: checking all of a long one takes longer than recording


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    instant = random.Random(options.seed)
    begin, saved, more, there, root = time.monotonic(), 0, 0, 0, Path()
    with tempfile.TemporaryDirectory(prefix="demoreel-kill-") as scratch:
        for number in range(options.rounds):
            if number == 0 or there > EPISODES_IN_ONE:
                root, there = Path(scratch) / f"dataset-{number}", 0
                begin_crash_recording(root)
            reports = killed(
                record_for_ever,
                root,
                options.seed + number,
                reports=instant.randrange(4),
                then=instant.uniform(0, 2),
            )
            safe = there + len(reports)
            found = episodes_in(root, check=check_whole, pictures_from=max(0, there - 1))
            if reports != list(range(there, safe)) or found not in (safe, safe + 1):
                print(f"round {number}: {safe} were saved, {found} are there", file=sys.stderr)
                return 1
            saved, more, there = saved + len(reports), more + (found > safe), found
            if number % 50 == 49:
                print(f"{number + 1} rounds, {saved} episodes saved, none lost", file=sys.stderr)
    print(
        f"{options.rounds} kills, {saved} episodes saved, 0 lost, {more} times the episode that "
        f"was being saved is there too; {time.monotonic() - begin:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
