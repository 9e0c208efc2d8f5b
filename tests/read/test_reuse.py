"""An order in which frames are decoded once: every sample once, mixed, and the plain items."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import demoreel
from demoreel.errors import ArgumentError, VideoError
from demoreel.read.batch import PoolBatch
from demoreel.read.order import Share
from demoreel.read.reuse import PoolForm, PoolOrder, pool_form
from demoreel.storage.cache import size_in_bytes
from demoreel.testing import make_dataset

LENGTHS = [13, 8, 37, 10, 1, 29]
FRAMES = sum(LENGTHS)
CAMERA = "observation.images.cam0"

FORMS = st.builds(
    PoolForm, slots=st.integers(1, 40), length=st.integers(1, 64), gop=st.integers(1, 90)
).map(
    lambda form: (
        form
        if form.gop > form.length
        else PoolForm(form.slots, form.length - form.length % form.gop, form.gop)
    )
)


def batches(lengths, form, *, epoch=0, seed=0, size=16, first=0, **share) -> list[PoolBatch]:
    part = Share(int(np.sum(lengths)), size=size, **share)
    return list(PoolOrder(np.array(lengths), form, seed, epoch, part).batches(first))


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=20),
    form=FORMS,
    size=st.integers(1, 70),
    ranks=st.integers(1, 3),
    workers=st.integers(1, 4),
    epoch=st.integers(0, 2**40),
    even=st.booleans(),
    whole_batches=st.booleans(),
)
def test_every_sample_comes_once(lengths, form, size, ranks, workers, epoch, even, whole_batches):
    seen: list[int] = []
    for rank in range(ranks):
        for worker in range(workers):
            share = Share(
                sum(lengths), rank=rank, world_size=ranks, worker=worker, workers=workers,
                size=size, even=even, whole_batches=whole_batches,
            )  # fmt: skip
            found = list(PoolOrder(np.array(lengths), form, 1, epoch, share).batches())
            assert [len(b) for b in found] == [len(share.places(n)) for n in range(share.steps)]
            seen += [index for batch in found for index in batch]
    assert len(set(seen)) == len(seen)
    assert len(seen) == (sum(lengths) // ranks * ranks if even else sum(lengths))
    assert set(seen) <= set(range(sum(lengths)))


@settings(deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=20), form=FORMS,
    size=st.integers(1, 70),
)  # fmt: skip
def test_a_batch_says_where_its_samples_lie(lengths, form, size):
    ends = np.cumsum(lengths)
    for batch in batches(lengths, form, size=size):
        for index, number in zip(batch, batch.span_of, strict=True):
            slot, start, stop = batch.spans[number]
            assert start <= index < stop <= start + form.length
            assert 0 <= slot < form.slots
            assert np.searchsorted(ends, start, "right") == np.searchsorted(ends, stop - 1, "right")
        assert batch.length == form.length
        slots = [slot for slot, _, _ in batch.ahead]
        assert len(set(slots)) == len(slots)


@settings(deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.integers(30, 150), min_size=1, max_size=20), form=FORMS,
    size=st.integers(1, 70),
)  # fmt: skip
def test_a_span_is_decoded_once(lengths, form, size):
    """No slot ever goes back to what it held before: what is loaded ahead is what comes."""
    held: dict[int, tuple[int, int]] = {}
    loaded: list[tuple[int, int]] = []
    for batch in batches(lengths, form, size=size):
        for slot, *span in (*batch.spans, *batch.ahead):
            if held.get(slot) != tuple(span):
                held[slot] = tuple(span)
                loaded.append(tuple(span))
    assert len(set(loaded)) == len(loaded)
    assert sum(stop - start for start, stop in loaded) == sum(lengths)


def assert_same(left, right):
    """Assert that two batches hold the same: keys in order, dtypes, values."""
    assert list(left) == list(right)
    for key, value in right.items():
        if isinstance(value, np.ndarray):
            assert left[key].dtype == value.dtype, key
            assert np.array_equal(left[key], value), key
        else:
            assert left[key] == value, key


def test_epochs_and_seeds_differ_and_repeat():
    form = PoolForm(4, 8)
    first = batches(LENGTHS, form)
    assert batches(LENGTHS, form) == first
    assert batches(LENGTHS, form, epoch=1) != first
    assert batches(LENGTHS, form, seed=1) != first


def test_the_order_stays_what_it_was():
    """A checkpoint of today continues with the demoreel of tomorrow."""
    assert [list(b) for b in batches([9, 7], PoolForm(2, 4), size=8)] == [
        [3, 8, 2, 7, 14, 6, 13, 0],
        [15, 1, 4, 11, 12, 9, 5, 10],
    ]


def test_going_on_in_the_middle():
    form = PoolForm(4, 8)
    for worker in range(2):
        share = {"workers": 2, "worker": worker, "size": 5}
        whole = batches(LENGTHS, form, **share)
        rest = batches(LENGTHS, form, first=3, **share)
        assert rest == whole[3:]
        assert [b.spans for b in rest] == [b.spans for b in whole[3:]]


def test_batches_are_mixed():
    """Of 93 episodes, and memory for 40 spans of 50, beside a shuffle of all: 46 episodes."""
    lengths = [250] * 93
    found = batches(lengths, PoolForm(40, 50, 2), size=64)
    episodes = [len({index // 250 for index in batch}) for batch in found]
    assert np.mean(episodes) > 32
    assert min(episodes[:-1]) > 20
    order = np.concatenate([list(batch) for batch in found])
    assert np.median(np.abs(np.diff(order))) > 93 * 250 / 5  # of a full shuffle: 0.29


def test_spans_of_an_epoch_begin_at_keyframes():
    lengths = np.array([100, 57])
    for form, gop in ((PoolForm(3, 12, 4), 4), (PoolForm(3, 16, 50), 50)):
        starts, _ = PoolOrder(lengths, form, 0, 0, Share(157)).spans
        inside = np.where(starts < 100, starts, starts - 100)
        if gop <= form.length:
            assert (inside % gop == 0).all()
        else:  # a GOP is cut into equal parts
            assert set(inside % gop) == {0, 13, 26, 39}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("reuse") / "made",
        episodes=LENGTHS,
        cameras={CAMERA: (48, 64)},
        image_cameras={"observation.images.still": (16, 24)},
        depth_cameras={"observation.images.depth": (24, 32)},
        gop=5,
        tasks=("push", "pull"),
    )


WINDOWS = {CAMERA: [-3, -1, 0], "observation.images.depth": [0, 9], "action": [0, 1]}


@pytest.mark.parametrize("windows", [{}, WINDOWS], ids=["single", "windows"])
@pytest.mark.parametrize("budget", ["60kB", "1MB", "1GB"])
def test_items_are_the_plain_ones(root, windows, budget):
    pooled, plain = (demoreel.open(root, windows=windows, decode_threads=2) for _ in range(2))
    form = pool_form(pooled, budget)
    for epoch in range(2):
        for batch in batches(pooled.episodes.length, form, epoch=epoch, size=7):
            assert_same(pooled.batch(batch), plain.batch(list(batch)))
    assert pooled.pool.nbytes <= size_in_bytes(budget) + form.slots * 64 * 3


@pytest.mark.parametrize("layout", ["v2.1", "lance-video", "lance-frames"])
def test_items_of_other_layouts(root, tmp_path, layout):
    demoreel.convert(root, tmp_path / "made", to=layout)
    pooled, plain = (demoreel.open(tmp_path / "made", windows=WINDOWS) for _ in range(2))
    for batch in batches(pooled.episodes.length, pool_form(pooled, "400kB"), size=16):
        assert_same(pooled.batch(batch), plain.batch(list(batch)))


def test_chosen_episodes_cameras_and_sizes(root):
    options = {"episodes": [1, 2, 5], "cameras": [CAMERA], "image_size": (24, 32)}
    pooled, plain = (demoreel.open(root, **options) for _ in range(2))
    form = pool_form(pooled, "100kB")
    for batch in batches(pooled.episodes.length, form, size=16):
        assert_same(pooled.batch(batch), plain.batch(list(batch)))
    assert form.slots * form.length * 24 * 32 * 3 <= 100_000


def test_each_image_is_decoded_about_once(root):
    dataset = demoreel.open(root, cameras=[CAMERA], windows={CAMERA: list(range(-7, 1))})
    form = pool_form(dataset, "700kB")
    for batch in batches(dataset.episodes.length, form, size=8):
        dataset.batch(batch)
    assert dataset.pool.decoded < 2.5 * FRAMES  # of 8 without: short spans, in little memory
    assert form.slots < FRAMES / form.length  # and not all of them were in memory


def test_what_fits_is_decoded_once_in_all_epochs(root):
    dataset = demoreel.open(root, cameras=[CAMERA])
    form = pool_form(dataset, "1GB")
    for epoch in range(3):
        for batch in batches(dataset.episodes.length, form, epoch=epoch, size=8):
            dataset.batch(batch)
    assert dataset.pool.decoded == FRAMES


def test_a_batch_of_any_order_is_served(root):
    """A batch that comes late, or twice, is read like any other."""
    pooled, plain = (demoreel.open(root, windows=WINDOWS) for _ in range(2))
    found = batches(pooled.episodes.length, pool_form(pooled, "400kB"), size=16)
    for batch in (found[5], found[0], found[5], found[-1], found[1]):
        assert_same(pooled.batch(batch), plain.batch(list(batch)))


def test_batches_travel():
    batch = batches(LENGTHS, PoolForm(4, 8))[3]
    other = pickle.loads(pickle.dumps(batch))
    assert other == batch
    assert (other.spans, other.span_of, other.ahead, other.length) == (
        batch.spans, batch.span_of, batch.ahead, batch.length
    )  # fmt: skip


def test_damage_is_an_error_every_time(root, tmp_path):
    shutil.copytree(root, tmp_path / "damaged")
    video = next((tmp_path / "damaged").rglob(f"*{CAMERA}/**/*.mp4"))
    data = bytearray(video.read_bytes())
    dataset = demoreel.open(tmp_path / "damaged", cameras=[CAMERA])
    index = dataset.reader.clip(2, CAMERA).video.index
    at = int(index.offset[len(index.offset) // 2])
    data[at + 5 : at + 200] = bytes(195)
    video.write_bytes(bytes(data))
    found = batches(LENGTHS, pool_form(dataset, "300kB"), size=16)

    def error_of(batch):
        try:
            dataset.batch(batch)
        except VideoError as error:
            return error.where["camera"]
        return None

    for _ in range(2):
        assert {error_of(batch) for batch in found} == {None, CAMERA}


def test_a_budget_that_is_too_small_says_what_a_sample_takes(root):
    with pytest.raises(ArgumentError, match=r"does not hold one sample.*\n.*\n.*13.4 kB"):
        pool_form(demoreel.open(root), "20kB", pools=2)
