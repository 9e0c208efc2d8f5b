"""Does our sampler give lerobot's order, state and length? Runs beside lerobot.

PYTHONPATH=src lerobot-python sampler_check.py
"""

from __future__ import annotations

import itertools

from lerobot.datasets import EpisodeAwareSampler as Theirs
from lerobot.datasets import compute_sampler_state as their_state

from demoreel.torch.sampler import EpisodeAwareSampler, compute_sampler_state

BOUNDS = ([0, 10, 25, 27], [10, 25, 27, 90])


def main() -> None:
    for seed, shuffle, first, last, chosen in itertools.product(
        (0, 7, 2**31), (True, False), (0, 2), (0, 3), (None, [0, 3])
    ):
        options = {
            "seed": seed,
            "shuffle": shuffle,
            "drop_n_first_frames": first,
            "drop_n_last_frames": last,
            "episode_indices_to_use": chosen,
        }
        theirs, ours = Theirs(*BOUNDS, **options), EpisodeAwareSampler(*BOUNDS, **options)
        assert ours.indices == theirs.indices
        assert len(ours) == len(theirs)
        for _ in range(3):
            assert list(ours) == list(theirs)
            assert ours.state_dict() == theirs.state_dict()
        for step in (0, 3, 11, 40):
            state = their_state(step, len(theirs), 4, 2)
            assert compute_sampler_state(step, len(theirs), 4, 2) == state
            ours.load_state_dict(state)
            theirs.load_state_dict(state)
            assert list(ours) == list(theirs)
    print("the same")


if __name__ == "__main__":
    main()
