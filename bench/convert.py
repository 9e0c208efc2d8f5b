"""Conversion to lance-video and lance-native against a plain copy, in one run.

    .venv/bin/python bench/convert.py [--megabytes 300] [--rounds 3] [--work FOLDER]

The source is the real G1 recording, repeated, as v3.0. The copy reads the same bytes and writes
them with fsync, file by file. Conversions write, index, force to disk and, unless told otherwise,
verify: the table shows both. Every round does each once, in turn; medians count.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from made import copy_synced, write_long

import demoreel

HERE = Path(__file__).parent
FIXTURE = HERE.parents[1] / "shared" / "fixtures" / "g1_v21"
BAR = 0.7
_BYTES_OF_ONE = 9_400_000  # the fixture's videos, about


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="where to make the data, and keep the source")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="demoreel-convert-"))
    source = work / "v30"
    if not source.exists():
        work.mkdir(parents=True, exist_ok=True)
        write_long(source, FIXTURE, times=max(1, options.megabytes * 1_000_000 // _BYTES_OF_ONE))
    size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    ways: dict[str, Callable[[Path], object]] = {
        "plain copy with fsync": lambda to: copy_synced(source, to)
    }
    for layout in ("lance-video", "lance-native"):
        for verify in (True, False):
            name = f"{layout}, {'verified' if verify else 'not verified'}"
            ways[name] = lambda to, layout=layout, verify=verify: demoreel.convert(
                source, to, to=layout, verify=verify
            )
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    sizes: dict[str, int] = {}
    for _ in range(options.rounds + 1):
        for name, way in ways.items():
            target = work / "target"
            os.sync()
            start = time.perf_counter()
            way(target)
            seconds[name].append(time.perf_counter() - start)
            sizes[name] = sum(p.stat().st_size for p in target.rglob("*") if p.is_file())
            shutil.rmtree(target)
    plain = median(seconds["plain copy with fsync"][1:])
    results = {
        name: {
            "seconds": median(times[1:]),  # the first round warms the page cache
            "of_a_copy": plain / median(times[1:]),
            "size_of_source": sizes[name] / size,
        }
        for name, times in seconds.items()
    }
    if options.work is None:
        shutil.rmtree(work)
    options.output.mkdir(exist_ok=True)
    (options.output / "convert.json").write_text(json.dumps({"bytes": size, **results}, indent=2))
    print(f"{size / 1e6:.0f} MB; the bar is {BAR} of a plain copy", file=sys.stderr)
    for name, told in results.items():
        print(
            f"{name:28} {told['seconds']:7.2f} s {told['of_a_copy']:6.2f} of a copy   "
            f"{100 * (told['size_of_source'] - 1):+.2f} % of the source's bytes"
        )


if __name__ == "__main__":
    main()
