"""Damage small datasets of every layout at random, and open, check and repair what is left.

    .venv/bin/python bench/fuzz.py [--cases 1000] [--seed 0] [--base v3] [--processes 2] [--one]
    .venv/bin/python bench/fuzz.py --bombs [--base v3] [--store s3] [--share 0.1]

A case is a base and a seed: the same two always give the same damage, so a run goes on where
another ended with `--seed`, and one case is repeated with `--one --base v3 --seed 17`. Every case
that ends in a way it may not is printed (`support.fuzz` says which ways those are), and
the exit status is 1 then. What checks stumbled over and did not foresee is printed, too.
`--bombs` tries every small dataset that asks for too much, with every way in; `--store` serves it
from an object store or the Hub, and `--share` takes some of all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from support.fuzz import BASES, Case, make_bases, run_case
from support.fuzz.bombs import STORES, bomb_cases, run_bomb
from support.fuzz.pool import MEMORY, run_each


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1000, help="cases of each base")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--base", choices=list(BASES), action="append", help="only these")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a case may take")
    parser.add_argument("--bombs", action="store_true", help="datasets that ask for too much")
    parser.add_argument("--store", choices=STORES, default="", help="where the bombs lie")
    parser.add_argument("--share", type=float, default=1.0, help="of all bombs and ways in")
    parser.add_argument("--one", action="store_true", help="only this seed; show what came of it")
    options = parser.parse_args()
    names = options.base or list(BASES)
    count = 1 if options.one else options.cases
    cases = (
        Case(name, seed) for seed in range(options.seed, options.seed + count) for name in names
    )
    if options.bombs:
        cases = iter(bomb_cases(names, share=options.share, seed=options.seed, store=options.store))
    begin = time.monotonic()
    run, bad, ends = Counter[str](), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="demoreel-fuzz-") as scratch:
        bases = make_bases(Path(scratch) / "bases", names)
        for verdict in run_each(
            run_bomb if options.bombs else run_case,
            cases,
            bases,
            Path(scratch) / "work",
            processes=options.processes,
            seconds=options.seconds,
            memory=MEMORY,
        ):
            run[verdict.case.base.split("/")[0]] += 1
            ends.update(f"{name} {end}" for name, end in verdict.outcome.items())
            bad.update(fault for fault, _ in verdict.faults)
            bad["unforeseen"] += bool(verdict.unforeseen)
            if run.total() % 200 == 0:
                print(f"{run.total()} cases, seed {verdict.case.seed}", file=sys.stderr, flush=True)
            if verdict.faults or verdict.unforeseen or options.one:
                print(verdict, flush=True)
    print(f"{run.total()} cases in {time.monotonic() - begin:.0f} s: {dict(run)}")
    print(f"may not be: {dict(bad)}")
    for end, times in ends.most_common(40):
        print(f"  {times:6} {end}")
    faults = bad.total() - bad["unforeseen"]
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
