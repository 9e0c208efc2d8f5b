"""How fast a mixture reads beside its parts, what a hundred datasets cost to open, and resuming.

    .venv/bin/python bench/mixture.py [DATASET] [--seconds 3] [--rounds 5] [--work FOLDER]

Of DATASET (the G1's recording) there are 100 folders, whose large files are hard links; every
second part has half of the episodes. The wanted rate is the weighted harmonic mean of the parts'
own: in the same run, read through the same class, alternating. Ratios hold on a loaded machine;
rates do not. For resuming, 200 loaders with random numbers of workers and ranks are left at a
random step, and others go on from their states; they give what an uninterrupted run gives.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demoreel.torch import Mixture, Part

HERE = Path(__file__).parent
FIXTURE = HERE.parents[1] / "shared" / "fixtures" / "g1_v30"
BATCH = 32
RATIOS = {2: 0.97, 100: 0.9}
OPEN_S, OPEN_MB = 10, 2000
RESUMES, WORKERS, RANKS, STEPS = 200, 4, 8, 400


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path, nargs="?", default=FIXTURE)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--resumes", type=int, default=RESUMES)
    parser.add_argument("--work", type=Path, help="where to make the folders, and keep them")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--open", type=Path, nargs="+", help="open these, and print the cost")
    options = parser.parse_args()
    if options.open:
        print(json.dumps(opened(options.open)))
        return
    work = options.work or Path(tempfile.mkdtemp(prefix="demoreel-mixture-"))
    roots = prepare(options.dataset, work, max(RATIOS))
    failed = []
    found: dict[str, Any] = {}
    for number, bar in RATIOS.items():
        told = beside_parts(roots[:number], options.seconds, options.rounds)
        found[f"{number} parts"] = told
        print(
            f"{number} datasets: {told['samples_per_s']:.0f} samples/s, {told['ratio']:.3f} of the "
            f"harmonic mean of their parts (bar {bar})"
        )
        failed += [f"{number} datasets"] if told["ratio"] < bar else []
    command = [sys.executable, __file__, "--open", *map(str, roots)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found["open"] = cost = json.loads(done.stdout)
    print(
        f"{len(roots)} datasets open in {cost['seconds']:.2f} s (bar {OPEN_S}) and "
        f"{cost['megabytes']:.0f} MB (bar {OPEN_MB}), torch included"
    )
    failed += ["open"] if cost["seconds"] > OPEN_S or cost["megabytes"] > OPEN_MB else []
    exact = sum(resumes(roots[:3], number) for number in range(options.resumes))
    found["resumes"] = {"tried": options.resumes, "exact": exact}
    print(f"{exact} of {options.resumes} random (step, workers, ranks) went on exactly")
    failed += ["resumes"] if exact < options.resumes else []
    if options.work is None:
        shutil.rmtree(work)
    options.output.mkdir(exist_ok=True)
    (options.output / "mixture.json").write_text(json.dumps(found, indent=2))
    sys.exit("below the bar: " + ", ".join(failed) if failed else 0)


def prepare(dataset: Path, work: Path, number: int) -> list[Path]:
    """Make so many folders of a dataset, unless they are there."""
    roots = [work / f"dataset-{place:03d}" for place in range(number)]
    work.mkdir(parents=True, exist_ok=True)
    whole = work / "dataset-whole"  # the fixture may lie on another disk
    if not whole.exists():
        shutil.copytree(dataset, whole)
    for root in roots:
        if not root.exists():
            shutil.copytree(whole, root, copy_function=os.link)
    return roots


def opened(roots: list[Path]) -> dict[str, float]:
    begin = time.perf_counter()
    from demoreel.torch import Mixture

    mixture = Mixture([str(root) for root in roots], return_uint8=True)
    mixture.read_batch(range(BATCH))
    return {
        "seconds": time.perf_counter() - begin,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def parts_of(roots: list[Path]) -> list[Part]:
    """Return a part for each folder; every second one has half of the episodes."""
    import demoreel
    from demoreel.torch import Part

    every = demoreel.open(roots[0]).episodes.episode_index.tolist()
    half = every[: max(1, len(every) // 2)]
    return [Part(root, episodes=None if n % 2 else half) for n, root in enumerate(roots)]


def beside_parts(roots: list[Path], seconds: float, rounds: int) -> dict[str, float]:
    from demoreel.torch import Mixture

    parts = parts_of(roots)
    whole = Mixture(parts, weights="equal", return_uint8=True)
    alone = [Mixture([part], return_uint8=True) for part in parts[:2]]
    for mixture in (whole, *alone):
        rate(mixture, seconds, 0)  # opens videos
    rates, ratios = [], []
    for turn in range(1, rounds + 1):
        together, one, other = (rate(m, seconds, 100_000 * turn) for m in (whole, *alone))
        rates.append(together)
        ratios.append(together * (1 / one + 1 / other) / 2)
    return {"parts": len(roots), "samples_per_s": median(rates), "ratio": median(ratios)}


def rate(mixture: Mixture, seconds: float, first: int) -> float:
    begin, samples = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        mixture.read_batch(range(first + samples, first + samples + BATCH))
        samples += BATCH
    return samples / (time.perf_counter() - begin)


def resumes(roots: list[Path], number: int) -> bool:
    """Leave a loader at a random step; return whether another one goes on as if it had not been."""
    from torch.utils.data import DataLoader

    from demoreel.torch import Mixture, Part

    chance = random.Random(number)
    ranks, size = chance.randint(1, RANKS), chance.randint(1, 16)
    rank, seed, step = chance.randrange(ranks), chance.randrange(2**31), chance.randint(0, STEPS)
    shares = zip(roots, (0.5, 0.3, 0.2), strict=True)
    parts = [Part(root, probability=share) for root, share in shares]

    def made(own_seed: int) -> Mixture:
        return Mixture(parts, cameras=[], seed=own_seed, rank=rank, world_size=ranks)

    def taken(mixture: Mixture, batch_size: int, batches: int) -> list[tuple[int, int]]:
        workers = chance.randint(0, WORKERS)
        loader = DataLoader(mixture, batch_size=batch_size, num_workers=workers)
        return [
            one
            for batch in itertools.islice(loader, batches)
            for one in zip(batch["dataset_index"].tolist(), batch["index"].tolist(), strict=True)
        ]

    batches = -(-step // size)
    begun, later = made(seed), made(seed + 1)
    first = taken(begun, size, batches) if batches else []
    later.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    then = taken(later, chance.randint(1, 16), 3)
    whole = made(seed)
    wanted = [whole.order(range(len(first) + len(then)))[part].tolist() for part in (0, 1)]
    return first + then == list(zip(*wanted, strict=True))


if __name__ == "__main__":
    main()
