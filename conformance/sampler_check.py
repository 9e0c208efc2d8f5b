"""Do our sampler and splits give what lerobot's do? Runs beside lerobot.

PYTHONPATH=src lerobot-python sampler_check.py DATASET...
"""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace

from lerobot.datasets import EpisodeAwareSampler as Theirs
from lerobot.datasets import compute_sampler_state as their_state
from lerobot.datasets import factory

import demoreel
from demoreel.torch import LeRobotDataset, eval_split
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
    for root in sys.argv[1:]:
        splits_are_the_same(root)
    print("the same")


def splits_are_the_same(root: str) -> None:
    """Ask lerobot's factory which episodes it would open for training and for evaluation."""
    opened = []

    def note(*_: object, episodes: list[int], **__: object) -> object:
        opened.append(episodes)
        return SimpleNamespace(meta=SimpleNamespace(camera_keys=[], stats={}))

    every = demoreel.open(root).episodes.episode_index.tolist()
    transforms = SimpleNamespace(enable=False)
    for fraction, chosen in itertools.product((0.1, 0.25, 0.5), (None, every[1:])):
        opened.clear()
        whole = LeRobotDataset("me/x", root, episodes=chosen)
        factory.make_dataset = lambda _, whole=whole: whole
        factory.LeRobotDataset = note
        factory.resolve_delta_timestamps = lambda *_: None
        asked = SimpleNamespace(
            repo_id="me/x", root=root, eval_split=fraction, image_transforms=transforms,
            revision=None, video_backend=None, use_imagenet_stats=False,
        )  # fmt: skip
        cfg = SimpleNamespace(dataset=asked, trainable_config=None, tolerance_s=1e-4)
        try:
            factory.make_train_eval_datasets(cfg)
        except ValueError:
            opened[:] = [None]
        try:
            ours = list(eval_split(demoreel.open(root), fraction, episodes=chosen))
        except ValueError:
            ours = [None]
        assert ours == opened, (fraction, chosen, ours, opened)


if __name__ == "__main__":
    main()
