"""How fast a mixture reads beside its parts, and what a hundred datasets cost to open.

    python bench/mixture.py DATASET [--seconds 3] [--parts 2 100]

DATASET is a folder; parts are opened from it several times, under several names, half of them with
other episodes. The wanted rate is the weighted harmonic mean of the parts' own: in the same run,
read through the same class, alternating. Ratios hold on a loaded machine; rates do not.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

BATCH = 32


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("dataset")
    arguments.add_argument("--seconds", type=float, default=3.0)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--parts", type=int, nargs="+", default=[2, 100])
    arguments.add_argument("--open", type=int, help="only open so many datasets, and say the cost")
    given = arguments.parse_args()
    if given.open:
        opened(given.dataset, given.open)
        return
    for number in given.parts:
        print(json.dumps(beside_parts(given.dataset, number, given.seconds, given.rounds)))
    command = [sys.executable, __file__, given.dataset, "--open", "100"]
    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


def opened(dataset: str, number: int) -> None:
    from demoreel.torch import Mixture

    begin = time.perf_counter()
    Mixture([dataset] * number, return_uint8=True)
    seconds = time.perf_counter() - begin
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps({"opened": number, "seconds": round(seconds, 2), "megabytes": round(megabytes)})
    )


def beside_parts(dataset: str, number: int, seconds: float, rounds: int) -> dict[str, float]:
    from demoreel.torch import Mixture, Part

    first = Mixture([dataset]).reader.parts[0].dataset.episodes.episode_index.tolist()
    half = first[: max(1, len(first) // 2)]
    parts = [Part(dataset, name=f"p{n}", episodes=None if n % 2 else half) for n in range(number)]
    whole = Mixture(parts, weights="equal", return_uint8=True)
    alone = [Mixture([part], return_uint8=True) for part in parts[:2]]
    rates: list[list[float]] = [[] for _ in range(3)]
    for mixture in (whole, *alone):
        rate(mixture, seconds / 4, 0)
    for turn in range(rounds):
        for found, mixture in zip(rates, (whole, *alone), strict=True):
            found.append(rate(mixture, seconds, 1000 * (turn + 1)))
    together, one, other = (float(np.median(found)) for found in rates)
    wanted = 2 / (1 / one + 1 / other)
    return {
        "parts": number,
        "samples_per_s": round(together, 1),
        "harmonic_mean": round(wanted, 1),
        "ratio": round(together / wanted, 3),
    }


def rate(mixture, seconds: float, first: int) -> float:
    begin, samples = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        mixture.read_batch(range(first + samples, first + samples + BATCH))
        samples += BATCH
    return samples / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
