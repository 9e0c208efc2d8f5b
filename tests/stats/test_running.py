import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from demoreel.errors import ArgumentError
from demoreel.model import Feature, combine_stats
from demoreel.stats.levels import camera_stats, cameras_stats
from demoreel.stats.running import QUANTILES, LevelCounts
from support.plain_stats import stats_of_values

columns = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 40), st.integers(1, 4)),
    elements=st.floats(-1e4, 1e4, width=32),
)
cuts = st.lists(st.integers(0, 40), max_size=4)


def in_parts(values, where):
    return np.split(values, sorted(min(cut, len(values)) for cut in where))


@settings(deadline=None)
@given(st.lists(hnp.arrays(np.uint8, (3, 4, 3)), min_size=1, max_size=5), cuts)
def test_images_in_any_pieces_give_what_numpy_gives_at_once(images, where):
    whole = LevelCounts()
    for piece in in_parts(np.array(images), where):
        part = LevelCounts()
        for image in piece:
            part.add(image)
        whole.merge(part)
    found = whole.finish()
    exact = np.array(images).reshape(-1, 3) / 255
    assert found["count"].tolist() == [len(images)]
    assert found["mean"].shape == (3, 1, 1)
    for name, value in (
        ("min", exact.min(axis=0)),
        ("max", exact.max(axis=0)),
        ("mean", exact.mean(axis=0)),
        ("std", exact.std(axis=0)),
        *((name, np.quantile(exact, share, axis=0)) for name, share in QUANTILES.items()),
    ):
        np.testing.assert_allclose(found[name].reshape(-1), value, rtol=1e-12, atol=1e-12)


def test_depth_stays_in_millimetres():
    images = LevelCounts()
    images.add(np.full((4, 5), 1200, np.uint16))
    images.add(np.full((4, 5), 3400, np.uint16))
    found = images.finish()
    assert found["mean"].tolist() == [[[2300.0]]]
    assert found["max"].tolist() == [[[3400.0]]]


@given(st.lists(columns.filter(lambda c: c.shape[1] >= 2), min_size=1, max_size=4))
def test_combining_finished_statistics_is_exact_but_for_quantiles(arrays):
    arrays = [array[:, :2] for array in arrays]
    parts = [{"action": stats_of_values(array)} for array in arrays]
    exact = np.concatenate(arrays).astype(np.float64)
    found = combine_stats(parts, quantiles=True)["action"]
    assert found["count"].tolist() == [len(exact)]
    assert np.array_equal(found["min"], exact.min(axis=0))
    np.testing.assert_allclose(found["mean"], exact.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(found["std"], exact.std(axis=0), atol=1e-6, rtol=1e-9)
    weights = [len(array) for array in arrays]
    middle = np.average([part["action"]["q50"] for part in parts], axis=0, weights=weights)
    np.testing.assert_allclose(found["q50"], middle, atol=1e-9)


def test_nothing_has_no_statistics():
    with pytest.raises(ArgumentError, match="no frames"):
        LevelCounts().finish()


def test_images_of_another_kind_are_refused():
    images = LevelCounts()
    images.add(np.zeros((2, 2, 3), np.uint8))
    with pytest.raises(ArgumentError, match="channels"):
        images.add(np.zeros((2, 2), np.uint16))
    with pytest.raises(ArgumentError, match="float32"):
        images.add(np.zeros((2, 2, 3), np.float32))
    assert images.finish()["count"].tolist() == [1]


def test_several_cameras_at_once_have_the_statistics_of_each():
    random = np.random.default_rng(0)
    shape = ["height", "width", "channels"]
    features = {
        "left": Feature("left", "video", (6, 8, 3), shape),
        "right": Feature("right", "image", (6, 8, 3), shape),
        "deep": Feature("deep", "image", (6, 8, 1), shape, {"is_depth_map": True}),
    }
    counts = {}
    for key, feature in features.items():
        deep = feature.is_depth
        images = random.integers(0, 256, (4, 6, 8) if deep else (4, 6, 8, 3))
        counts[key] = [LevelCounts(), LevelCounts()]
        for number, image in enumerate(images):
            counts[key][number % 2].add(image.astype(np.uint16 if deep else np.uint8))
    found = cameras_stats(counts, features)
    assert list(found) != []
    for key, parts in counts.items():
        for made, part in zip(found[key], parts, strict=True):
            expected = camera_stats(part, features[key])
            assert made.keys() == expected.keys()
            for name, value in expected.items():
                assert made[name].shape == value.shape
                assert np.array_equal(made[name], value)
