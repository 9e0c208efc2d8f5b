"""Statistics: read, written, and combined exactly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from demoreel.errors import MetadataError
from demoreel.model import combine_stats, stats_from_json, stats_to_json
from demoreel.model.stats import extend_stats

WHERE = "meta/stats.json"


def stats_of(values, **more):
    return {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        "count": np.array([len(values)]),
        **more,
    }


parts = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        hnp.arrays(
            np.float64, st.tuples(st.integers(1, 20), st.just(width)), elements=st.floats(-1e6, 1e6)
        ),
        min_size=1,
        max_size=6,
    )
)


@given(parts)
def test_combining_is_as_good_as_having_it_all(arrays):
    found = combine_stats([{"action": stats_of(array)} for array in arrays])["action"]
    expected = stats_of(np.concatenate(arrays))
    assert set(found) == set(expected)
    assert found["count"].tolist() == expected["count"].tolist()
    assert np.array_equal(found["min"], expected["min"])
    assert np.array_equal(found["max"], expected["max"])
    np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(found["std"], expected["std"], rtol=1e-6, atol=1e-3)


@given(st.lists(hnp.arrays(np.uint8, (2, 3, 4, 5)), min_size=1, max_size=4))
def test_images_have_statistics_per_channel(arrays):
    def per_channel(images):
        flat = images.transpose(0, 2, 3, 1).reshape(-1, 3) / 255
        kinds = {
            name: value.reshape(3, 1, 1)
            for name, value in stats_of(flat).items()
            if name != "count"
        }
        return kinds | {"count": np.array([len(images)])}

    found = combine_stats([{"front": per_channel(array)} for array in arrays])["front"]
    expected = per_channel(np.concatenate(arrays))
    assert found["mean"].shape == (3, 1, 1)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-12, err_msg=name)


def test_parts_of_uneven_weight():
    small, large = np.zeros((1, 1)), np.ones((99, 1))
    found = combine_stats([{"a": stats_of(small)}, {"a": stats_of(large)}])["a"]
    assert found["mean"].tolist() == [0.99]
    assert found["count"].tolist() == [100]


def test_quantiles_and_features_that_some_lack_are_left_out():
    whole = stats_of(np.ones((3, 2)), q50=np.ones(2))
    half = {name: value for name, value in whole.items() if name != "std"}
    found = combine_stats([{"a": whole, "b": whole, "c": whole}, {"a": whole, "b": half}])
    assert set(found) == {"a"}
    assert set(found["a"]) == {"min", "max", "mean", "std", "count"}


def test_a_grown_dataset_keeps_what_only_the_whole_has_and_averages_quantiles():
    one, three = (
        stats_of(np.zeros((1, 1)), q50=np.zeros(1)),
        stats_of(np.ones((3, 1)), q50=np.ones(1)),
    )
    found = extend_stats({"a": one, "old": one}, {"a": three, "new": three})
    assert found.keys() == {"a", "old"}
    assert found["a"]["count"].tolist() == [4]
    assert found["a"]["q50"].tolist() == [0.75]
    assert found["old"]["count"].tolist() == [1]


def test_nothing_to_combine():
    assert combine_stats([]) is None


def test_parts_that_do_not_fit_together():
    with pytest.raises(MetadataError, match=r"'action'.*shapes \(2,\) and \(3,\)"):
        combine_stats(
            [{"action": stats_of(np.ones((4, 2)))}, {"action": stats_of(np.ones((4, 3)))}]
        )
    nothing = stats_of(np.ones((4, 2))) | {"count": np.array([0])}
    with pytest.raises(MetadataError, match="count no frames"):
        combine_stats([{"action": nothing}])


# JSON


def test_there_and_back():
    raw = {"action": {"mean": [0.5, 1.5], "count": [3]}, "front": {"mean": [[[0.1]], [[0.2]]]}}
    found = stats_from_json(raw, where=WHERE)
    assert found["front"]["mean"].shape == (2, 1, 1)
    assert found["action"]["count"].dtype.kind == "i"
    assert stats_to_json(found) == raw
    assert stats_from_json(json.loads(json.dumps(stats_to_json(found))), where=WHERE).keys()


def test_scalars_become_arrays_of_one():
    found = stats_from_json({"done": {"mean": 0.5, "max": True, "std": float("nan")}}, where=WHERE)
    assert found["done"]["mean"].tolist() == [0.5]
    assert found["done"]["max"].tolist() == [True]
    assert np.isnan(found["done"]["std"]).all()


@pytest.mark.parametrize("name", ["g1_v30", "kitchen_v30", "kitchen_images_v30"])
def test_what_other_tools_wrote(fixtures, name):
    stored = json.loads((fixtures / name / "meta" / "stats.json").read_text())
    assert stats_to_json(stats_from_json(stored, where=WHERE)) == stored


def test_episodes_of_a_real_recording(fixtures):
    """Combined from episodes, they are the statistics that lerobot wrote for the whole."""
    lines = (fixtures / "g1_v21" / "meta" / "episodes_stats.jsonl").read_text().splitlines()
    each = [stats_from_json(json.loads(line)["stats"], where=WHERE) for line in lines]
    found = combine_stats(each)
    whole = json.loads((fixtures / "g1_v30" / "meta" / "stats.json").read_text())
    whole = stats_from_json(whole, where=WHERE)
    assert found["action"]["count"].tolist() == [1013]
    for key in ("action", "observation.state"):
        for kind in ("min", "max", "mean", "std"):
            np.testing.assert_allclose(found[key][kind], whole[key][kind], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        "text",
        {"action": None},
        {"action": [1, 2]},
        {"action": {"mean": "much"}},
        {"action": {"mean": [1, "much"]}},
        {"action": {"mean": [[1, 2], [3]]}},
        {"action": {"mean": None}},
        {"action": {"mean": {"x": 1}}},
        {"action": {"mean": [1, None]}},
        {"action": {"mean": [10**400]}},
    ],
)
def test_what_is_no_statistic(raw):
    with pytest.raises(MetadataError) as caught:
        stats_from_json(raw, where=WHERE)
    assert caught.value.where["file"] == WHERE
