"""Streaming: the map-style items in an exact order, with workers, ranks, resuming and damage."""

from __future__ import annotations

import copy
import itertools
import pickle
import shutil
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

import demoreel
from demoreel.errors import ArgumentError, DatasetNotFoundError, DemoreelWarning, VideoError
from demoreel.read.order import FrameOrder
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset, StreamingLeRobotDataset
from support.hub_server import HubServer

from ..conftest import assert_same

CAMERA = "observation.images.cam0"
LENGTHS = [13, 8, 20, 10]
FRAMES = sum(LENGTHS)
WINDOWS = {CAMERA: [-1 / 30, 0.0], "action": [0.0, 1 / 30, 2 / 30]}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    return make_dataset(
        folder / "made", episodes=LENGTHS, cameras=2, gop=5, video_files_size_in_mb=0.005
    )


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A dataset without images, for what is about order only."""
    return make_dataset(tmp_path_factory.mktemp("stream") / "numbers", episodes=LENGTHS, cameras=0)


def order_of(seed: int = 42, epoch: int = 0) -> list[int]:
    return FrameOrder(FRAMES, seed, epoch).at(np.arange(FRAMES)).tolist()


def frames_of(found) -> list[int]:
    """The frames' numbers, from samples or batches."""
    return [int(number) for item in found for number in item["index"].reshape(-1)]


def batches_of(frames: list[int], size: int) -> list[list[int]]:
    return [frames[start : start + size] for start in range(0, len(frames), size)]


class TestItems:
    def test_of_a_row_that_is_named(self, numbers):
        stream = StreamingLeRobotDataset("me/numbers", numbers, episodes=[1, 2], buffer_size=7)
        rows = iter([{"index": 13}, {"index": 25}])
        assert frames_of(stream.make_frame(rows)) == [13]
        assert frames_of(stream.make_frame(rows)) == [25]
        assert list(stream.make_frame(rows)) == []
        assert (stream.buffer_size, stream.streaming_from_local) == (7, True)

    @pytest.mark.parametrize("layout", ["v2.1", "v3.0", "lance-video"])
    def test_they_are_the_map_style_ones(self, tmp_path, layout):
        root = make_dataset(
            tmp_path / "made",
            episodes=[7, 12, 5],
            image_cameras={"observation.images.still": (16, 24)},
            layout="v2.1" if layout == "v2.1" else "v3.0",
            gop=4,
            tasks=("push", "pull"),
        )
        if layout == "lance-video":
            demoreel.convert(root, tmp_path / "lance", to=layout)
            root = tmp_path / "lance"
        options = {"delta_timestamps": WINDOWS, "image_transforms": lambda image: 1 - image}
        ds = LeRobotDataset("me/made", root, **options)
        found = list(StreamingLeRobotDataset("me/made", root, **options))
        assert sorted(frames_of(found)) == list(range(24))
        assert frames_of(found) != list(range(24))
        for item in found:
            assert_same(item, ds[int(item["index"])])

    def test_batches_are_collated_items(self, root):
        ds = LeRobotDataset("me/made", root, return_uint8=True, delta_timestamps=WINDOWS)
        stream = StreamingLeRobotDataset(
            "me/made", root, return_uint8=True, delta_timestamps=WINDOWS, batch_size=8
        )
        found = list(stream)
        for batch, frames in zip(found, batches_of(order_of(), 8), strict=True):
            assert_same(batch, default_collate(ds.__getitems__(frames)))
        assert len(found) == len(stream) == 7

    def test_without_shuffling_they_come_as_they_lie(self, root):
        stream = StreamingLeRobotDataset("me/made", root, shuffle=False, cameras=[])
        assert frames_of(stream) == list(range(FRAMES))
        assert frames_of(stream) == list(range(FRAMES))  # and so in every epoch

    def test_chosen_episodes(self, root):
        ds = LeRobotDataset("me/made", root, episodes=[3, 1])
        for shuffle in (False, True):
            stream = StreamingLeRobotDataset("me/made", root, [3, 1], shuffle=shuffle)
            found = list(stream)
            assert len(found) == len(stream) == stream.num_frames == 18
            assert stream.num_episodes == 2
            place = {int(ds[n]["index"]): n for n in range(18)}
            assert sorted(frames_of(found)) == sorted(place)
            for item in found:
                assert_same(item, ds[place[int(item["index"])]])
            assert shuffle or frames_of(found) == sorted(place)

    def test_a_folder_alone_names_a_dataset(self, root, monkeypatch):
        monkeypatch.setenv("HF_LEROBOT_HOME", str(root.parent))
        named = [StreamingLeRobotDataset(given) for given in (root, str(root), root.name)]
        assert {stream.repo_id for stream in named} == {"made"}
        assert frames_of(named[2]) == order_of()

    def test_it_says_what_the_dataset_says(self, root):
        stream = StreamingLeRobotDataset("me/made", root, delta_timestamps=WINDOWS)
        ds = LeRobotDataset("me/made", root, delta_timestamps=WINDOWS)
        for name in ("fps", "features", "num_frames", "num_episodes", "delta_indices", "revision"):
            assert getattr(stream, name) == getattr(ds, name)
        assert stream.meta.total_frames == FRAMES
        assert "epoch=0, seed=42, rank=0 of 1" in repr(stream)


class TestOrder:
    @pytest.mark.parametrize("workers", [0, 1, 3])
    def test_whatever_the_workers(self, root, workers):
        stream = StreamingLeRobotDataset("me/made", root, batch_size=4, return_uint8=True)
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        found = [frames_of([batch]) for batch in loader]
        assert found == batches_of(order_of(), 4)
        assert len(loader) == len(found)

    @pytest.mark.soak
    def test_spawned_workers(self, root):
        stream = StreamingLeRobotDataset("me/made", root, batch_size=16, return_uint8=True)
        next(iter(stream))
        loader = stream.loader(num_workers=2, multiprocessing_context="spawn")
        ds = LeRobotDataset("me/made", root, return_uint8=True)
        for epoch in range(2):  # told through shared memory that an epoch is over
            found = list(loader)
            assert frames_of(found) == order_of(epoch=epoch)
            assert_same(found[-1], default_collate(ds.__getitems__(order_of(epoch=epoch)[-3:])))

    @pytest.mark.parametrize("workers", [0, 2])
    def test_single_samples(self, numbers, workers):
        stream = StreamingLeRobotDataset("me/made", numbers)
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        assert frames_of(loader) == order_of()

    def test_single_samples_that_a_loader_batches(self, numbers):
        """The loader does not say by how many: the order is then that of whole turns."""
        stream = StreamingLeRobotDataset("me/made", numbers)
        assert frames_of(DataLoader(stream, batch_size=5)) == order_of()
        found = list(DataLoader(stream, batch_size=5, num_workers=2))
        stream = StreamingLeRobotDataset("me/made", numbers)
        found = [frames_of([b]) for b in DataLoader(stream, batch_size=5, num_workers=2)]
        assert sorted(itertools.chain(*found)) == list(range(FRAMES))
        for turn in range(5):
            both = found[2 * turn] + found[2 * turn + 1]
            assert sorted(both) == sorted(order_of()[10 * turn : 10 * turn + 10])

    def test_ranks_divide_every_step(self, numbers):
        for even, expected in ((True, FRAMES // 4 * 4), (False, FRAMES)):
            ranks = [
                StreamingLeRobotDataset("me/made", numbers, rank=r, world_size=4, even=even)
                for r in range(4)
            ]
            found = [frames_of(stream) for stream in ranks]
            assert [len(part) for part in found] == [len(stream) for stream in ranks]
            turns = itertools.chain(*itertools.zip_longest(*found))
            assert [n for n in turns if n is not None] == order_of()[:expected]

    def test_a_short_last_batch_can_be_dropped(self, numbers):
        stream = StreamingLeRobotDataset("me/made", numbers, batch_size=20, drop_last=True)
        assert len(stream) == 2
        assert frames_of(stream) == order_of()[:40]
        assert frames_of(stream.loader(num_workers=2)) == order_of(epoch=1)[:40]

    def test_the_seed(self, numbers):
        assert frames_of(StreamingLeRobotDataset("me/made", numbers, seed=7)) == order_of(seed=7)
        drawn = [
            StreamingLeRobotDataset("me/made", numbers, rng=np.random.default_rng(n)).seed
            for n in (1, 1, 2)
        ]
        assert drawn[0] == drawn[1] != drawn[2]


class TestEpochs:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_finished_pass_leads_to_the_next(self, numbers, workers):
        loader = StreamingLeRobotDataset("me/made", numbers, batch_size=8).loader(
            num_workers=workers
        )
        for epoch in range(3):
            assert frames_of(loader) == order_of(epoch=epoch)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_pass_that_was_broken_off_begins_again(self, numbers, workers):
        with warnings.catch_warnings():
            warnings.simplefilter("error", DemoreelWarning)
            loader = StreamingLeRobotDataset("me/made", numbers, batch_size=8).loader(
                num_workers=workers
            )
            for taken in (1, 5):
                assert frames_of(itertools.islice(loader, taken)) == order_of()[: 8 * taken]
            assert frames_of(loader) == order_of()

    def test_set_epoch_reaches_workers_that_live_on(self, numbers):
        stream = StreamingLeRobotDataset("me/made", numbers, batch_size=8)
        loader = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)
        for epoch in (0, 5, 2):
            stream.set_epoch(epoch)
            assert frames_of(loader) == order_of(epoch=epoch)

    def test_an_order_that_repeats_itself_is_said(self, numbers):
        stream = StreamingLeRobotDataset("me/made", numbers, batch_size=8)
        loader = DataLoader(
            stream, batch_size=None, num_workers=1, worker_init_fn=take_warnings_for_errors
        )
        assert frames_of(loader) == order_of()
        again = iter(loader)
        with pytest.raises(DemoreelWarning, match=r"call set_epoch\(\) before each pass"):
            next(again)
        let_workers_go(again)
        stream.set_epoch(1)
        assert frames_of(loader) == order_of(epoch=1)

    def test_the_epoch_one_is_in_keeps_its_place(self, numbers):
        stream = StreamingLeRobotDataset("me/made", numbers)
        stream.set_epoch(3)
        first = frames_of(itertools.islice(stream, 20))
        other = StreamingLeRobotDataset("me/made", numbers)
        other.load_state_dict(stream.state_dict())
        other.set_epoch(3)
        assert first + frames_of(other) == order_of(epoch=3)
        assert other.epoch == 4


class TestResuming:
    def test_in_every_way_and_every_number(self, numbers):
        """A training that is moved between machines sees the sequence that it would have seen."""
        ways = [(3, 0, 4, 2), (1, 2, 8, 1), (2, 1, None, 5), (1, 0, 5, 2)]
        state, sequence = None, []
        for world_size, workers, batch_size, steps in ways:
            parts, states = [], []
            for rank in range(world_size):
                loader = StreamingLeRobotDataset(
                    "me/made", numbers, batch_size=batch_size, rank=rank, world_size=world_size
                ).loader(num_workers=workers)
                if state is not None:
                    loader.load_state_dict(state)
                delivered = iter(loader)
                parts.append(frames_of(itertools.islice(delivered, steps)))
                states.append(loader.state_dict())
            sequence += itertools.chain(*zip(*parts, strict=True))
            state = pickle.loads(pickle.dumps(states[0]))
            assert all(other == state for other in states)
            assert state["consumed"] == len(sequence)
        assert sequence == order_of()[: len(sequence)]
        stream = StreamingLeRobotDataset("me/made", numbers, seed=1)
        stream.load_state_dict(state)
        assert sequence + frames_of(stream) == order_of()
        assert frames_of(stream) == order_of(epoch=1)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_at_the_end_of_an_epoch(self, numbers, workers):
        loader = StreamingLeRobotDataset("me/made", numbers, batch_size=17).loader(
            num_workers=workers
        )
        delivered = iter(loader)
        list(itertools.islice(delivered, 3))
        full = loader.state_dict()  # nothing is left, but the end is not told yet
        assert list(delivered) == []
        over = loader.state_dict()
        for state, left in ((full, []), (over, order_of(epoch=1))):
            stream = StreamingLeRobotDataset("me/made", numbers)
            stream.load_state_dict(state)
            assert frames_of(stream) == left
        assert next(delivered, None) is None

    def test_running_workers_go_where_a_state_says(self, numbers):
        loader = StreamingLeRobotDataset("me/made", numbers, batch_size=5).loader(num_workers=2)
        delivered = iter(loader)
        next(delivered)
        state = loader.state_dict()
        list(delivered)
        loader.load_state_dict(state)
        assert frames_of(loader) == order_of()[5:]
        assert frames_of(loader) == order_of(epoch=1)

    @pytest.mark.parametrize("batch_size", [None, 4])
    def test_states_of_workers(self, numbers, batch_size):
        """As torchdata's StatefulDataLoader does: each worker is asked, and told, its own."""
        stream = Telling("me/made", numbers, batch_size=batch_size)
        loader = DataLoader(stream, batch_size=None, num_workers=2)
        delivered, states, first = iter(loader), {}, []
        for _ in range(7):
            worker, state, item = next(delivered)
            states[worker] = state
            first += frames_of([item])
        let_workers_go(delivered)
        stream = Telling("me/made", numbers, batch_size=batch_size)
        rest = DataLoader(stream, batch_size=None, num_workers=2, worker_init_fn=Told(states))
        # Seven were delivered: it is the second worker's turn.
        found = {0: [], 1: []}
        for worker, _, item in rest:
            found[worker].append(frames_of([item]))
        turns = itertools.chain(*itertools.zip_longest(found[1], found[0], fillvalue=[]))
        assert first + list(itertools.chain(*turns)) == order_of()
        alone = StreamingLeRobotDataset("me/made", numbers, batch_size=batch_size)
        alone.load_state_dict(states[0])
        batches = iter(DataLoader(alone, batch_size=None, num_workers=1))
        with pytest.raises(ArgumentError, match="one of 2 workers"):
            next(batches)
        let_workers_go(batches)

    def test_states_of_other_streams_are_refused(self, numbers):
        stream = StreamingLeRobotDataset("me/made", numbers)
        good = stream.state_dict()
        fewer = StreamingLeRobotDataset("me/made", numbers, episodes=[1]).state_dict()
        for bad in (
            fewer,
            {**good, "shuffle": False},
            {**good, "consumed": FRAMES + 1},
            {**good, "epoch": -1},
            {},
        ):
            with pytest.raises(ArgumentError):
                stream.load_state_dict(bad)
        assert stream.state_dict() == good


def let_workers_go(batches):
    """End them now. After an error torch leaves it to the garbage collector, and waits for 5 s."""
    batches._shutdown_workers()


def take_warnings_for_errors(worker):
    warnings.simplefilter("error", DemoreelWarning)


class Telling(StreamingLeRobotDataset):
    """Gives each item together with the worker's number and state, as of right after it."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for item in super().__iter__():
            yield info.id, self.state_dict(), item


class Told:
    """Loads in each worker the state that was saved in it."""

    def __init__(self, states):
        self.states = states

    def __call__(self, worker):
        torch.utils.data.get_worker_info().dataset.load_state_dict(self.states[worker])


class TestDamage:
    @pytest.fixture
    def broken(self, root, tmp_path):
        """The last video of a camera is cut off, the others are whole."""
        broken = shutil.copytree(root, tmp_path / "broken")
        video = max((broken / "videos" / CAMERA).rglob("*.mp4"))
        assert video.name != "file-000.mp4"
        video.write_bytes(video.read_bytes()[:100])
        return broken

    def test_it_is_an_error_each_time_and_no_end(self, broken):
        stream = StreamingLeRobotDataset("me/made", broken, shuffle=False)
        found, items = [], iter(stream)
        with pytest.raises(VideoError):
            found.extend(items)
        for _ in range(3):
            with pytest.raises(VideoError):
                next(items)
        assert stream.epoch == 0

    @pytest.mark.parametrize("workers", [0, 2])
    def test_in_a_loader(self, broken, workers):
        stream = StreamingLeRobotDataset("me/made", broken, batch_size=4, shuffle=False)
        loader = stream.loader(num_workers=workers)
        batches = iter(loader)
        found = []
        with pytest.raises(VideoError, match="cut off"):
            found.extend(batches)
        found = frames_of(found)
        assert found == list(range(len(found)))
        assert 0 < len(found) < FRAMES
        assert loader.state_dict()["consumed"] == len(found)
        for _ in range(2):
            with pytest.raises(VideoError):
                next(batches)
        assert stream.epoch == 0

    def test_in_a_plain_loader(self, broken):
        stream = StreamingLeRobotDataset("me/made", broken, batch_size=4)
        batches = iter(DataLoader(stream, batch_size=None, num_workers=2))
        found = []
        with pytest.raises(VideoError, match="cut off"):
            found.extend(batches)
        let_workers_go(batches)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_what_was_repaired_is_read_on(self, root, broken, workers):
        stream = StreamingLeRobotDataset("me/made", broken, batch_size=4, shuffle=False)
        found, batches = [], iter(stream.loader(num_workers=workers))
        with pytest.raises(VideoError):
            found.extend(batches)
        shutil.copytree(root / "videos", broken / "videos", dirs_exist_ok=True)
        assert frames_of(found) + frames_of(batches) == list(range(FRAMES))
        assert stream.epoch == 1


class TestRemote:
    """Datasets that are read where they lie: the same items in the same order."""

    @pytest.mark.soak
    @pytest.mark.parametrize("layout", ["v3.0", "lance-video"])
    def test_in_an_object_store(self, s3, root, tmp_path, monkeypatch, layout):
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        local = root
        if layout != "v3.0":
            demoreel.convert(root, tmp_path / "lance", to=layout)
            local = tmp_path / "lance"
        uri = s3.upload(local, f"stream/{layout}")
        options = {"return_uint8": True, "delta_timestamps": WINDOWS}
        ds = LeRobotDataset("me/made", local, **options)
        for batch_size, batched_by, workers in ((8, None, 0), (8, None, 2), (None, 8, 1)):
            stream = StreamingLeRobotDataset(uri, batch_size=batch_size, **options)
            loader = DataLoader(stream, batch_size=batched_by, num_workers=workers)
            found = list(loader)
            for batch, frames in zip(found, batches_of(order_of(), 8), strict=True):
                assert_same(batch, default_collate(ds.__getitems__(frames)))

    @pytest.mark.soak
    def test_the_next_batch_is_on_its_way_while_this_one_is_read(self, s3, root):
        uri = s3.upload(root, "stream/announced")
        stream = StreamingLeRobotDataset(
            uri, batch_size=20, storage_options=s3.storage_options, return_uint8=True
        )
        announced, reader = [], stream.dataset.reader
        prefetch = reader.prefetch
        reader.prefetch = lambda frames: [announced.append(list(frames)), prefetch(frames)]
        batches, expected = iter(stream), batches_of(order_of(), 20)
        for at in range(3):
            assert frames_of([next(batches)]) == expected[at]
            assert announced == expected[1 : at + 2]

    def test_on_the_hub(self, root, tmp_path, monkeypatch):
        with HubServer(tmp_path / "server") as hub:
            for name, value in hub.environment.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
            hub.seed("me/made", root, tag="v3.0")
            stream = StreamingLeRobotDataset("me/made", return_uint8=True, batch_size=17)
            assert frames_of(stream) == order_of()
            assert not list((tmp_path / "home").rglob("*.mp4"))
            fetched = StreamingLeRobotDataset("me/made", streaming=False, cameras=[CAMERA])
            assert frames_of(fetched) == order_of()
            assert list((tmp_path / "home").rglob("*.mp4"))
            with pytest.raises(DatasetNotFoundError):
                StreamingLeRobotDataset("me/nowhere")


class TestArguments:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"batch_size": 0},
            {"batch_size": 2.5},
            {"seed": -1},
            {"seed": 2**63},
            {"rank": 1},
            {"rank": 2, "world_size": 2},
            {"episodes": []},
        ],
    )
    def test_what_cannot_be_is_refused(self, numbers, wrong):
        with pytest.raises(ArgumentError):
            StreamingLeRobotDataset("me/made", numbers, **wrong)

    def test_there_is_no_epoch_before_the_first(self, numbers):
        with pytest.raises(ArgumentError, match="epoch"):
            StreamingLeRobotDataset("me/made", numbers).set_epoch(-1)

    def test_lerobots_arguments_have_their_places(self, numbers):
        stream = StreamingLeRobotDataset(
            "me/made", numbers, None, None, None, 1e-4, None, False, True, 10, 4, 9, None, False
        )
        assert (stream.seed, stream.shuffle) == (9, False)

    def test_the_rank_is_found(self, numbers, monkeypatch, tmp_path):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "3")
        stream = StreamingLeRobotDataset("me/made", numbers)
        assert (stream.rank, stream.world_size) == (1, 3)
        group = f"file://{tmp_path / 'group'}"
        torch.distributed.init_process_group("gloo", init_method=group, rank=0, world_size=1)
        try:
            stream = StreamingLeRobotDataset("me/made", numbers)
        finally:
            torch.distributed.destroy_process_group()
        assert (stream.rank, stream.world_size) == (0, 1)


class TestMemory:
    def test_what_travels_does_not_grow_with_the_dataset(self, numbers, tmp_path):
        large = make_dataset(tmp_path / "numbers", episodes=[5000], cameras=0, with_stats=False)
        sizes = []
        for root in (numbers, large):
            stream = StreamingLeRobotDataset("me/made", root, batch_size=8)
            next(iter(stream))
            sizes.append(len(pickle.dumps(stream)))
        assert abs(sizes[1] - sizes[0]) < 200

    def test_a_copy_goes_its_own_way(self, numbers):
        stream = StreamingLeRobotDataset("me/made", numbers)
        other = copy.deepcopy(stream)
        assert frames_of(stream) == order_of()
        assert (stream.epoch, other.epoch) == (1, 0)
