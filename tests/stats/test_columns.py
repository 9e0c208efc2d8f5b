"""Statistics of columns are those of all values at once, whatever is held together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from demoreel.model import Feature
from demoreel.stats import columns as exactly
from demoreel.stats.columns import Facts, number_stats, whole_stats
from demoreel.stats.running import LevelCounts
from demoreel.testing.factory import GatheredStats
from support.plain_stats import stats_of_rows, stats_of_values

FEATURES = {
    "task_index": Feature("task_index", "int64", (1,)),
    "arm": Feature("arm", "float32", (3,)),
    "grid": Feature("grid", "int32", (2, 4)),
    "note": Feature("note", "string", (1,)),
}


KINDS = ["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "uint64", "bool"]


class Portions:
    """Columns that pass by some rows at a time."""

    def __init__(self, size: int, **values: np.ndarray) -> None:
        self.frames = len(next(iter(values.values())))
        self.reads = 0
        self._values = values
        self._size = size

    def portions(self, features):
        self.reads += 1
        for at in range(0, self.frames, self._size):
            yield {f.key: self._values[f.key][at : at + self._size] for f in features}


def assert_right(found, values: np.ndarray) -> None:
    wanted = stats_of_values(values)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        tolerance = 1e-9 if name in ("mean", "std") else 0
        np.testing.assert_allclose(found[name], value, tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("held", [1, 30_000, 1 << 20])
def test_columns_of_every_type(kind, held, monkeypatch):
    monkeypatch.setattr(exactly, "_HELD", held)
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(12_000, 3)) * [1, 30, 0]).astype(kind)
    found = whole_stats(Portions(700, arm=values), [Feature("arm", kind, (3,))])
    assert_right(found["arm"], values)


@settings(max_examples=60, deadline=None)
@given(
    values=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 40), st.integers(1, 3)),
        elements=st.floats(-1e6, 1e6, width=32),
    ),
    size=st.integers(1, 50),
)
def test_any_floats(values, size):
    feature = Feature("arm", "float32", (values.shape[1],))
    assert_right(whole_stats(Portions(size, arm=values), [feature])["arm"], values)


@pytest.mark.parametrize("rows", [10, 20_000])
def test_what_is_not_a_number_spoils_its_dimension_only(rows):
    values = np.arange(2.0 * rows).reshape(-1, 2)
    values[3, 1] = np.nan
    found = whole_stats(Portions(4000, arm=values), [Feature("arm", "float64", (2,))])["arm"]
    assert all(np.isnan(found[kind][1]) for kind in found if kind != "count")
    assert_right({k: v if k == "count" else v[:1] for k, v in found.items()}, values[:, :1])


def test_the_same_bits_whatever_is_held_together(monkeypatch):
    rng = np.random.default_rng(1)
    values = {
        "wide": rng.normal(size=(3000, 5)).astype(np.float32),
        "grid": rng.normal(size=(3000, 2, 3)),
        "number": rng.integers(0, 1 << 40, 3000),
    }
    features = [
        Feature("wide", "float32", (5,)),
        Feature("grid", "float64", (2, 3)),
        Feature("number", "int64", (1,)),
    ]
    found = []
    for held, size in ((1, 256), (40_000, 999), (1 << 20, 3000)):
        monkeypatch.setattr(exactly, "_HELD", held)
        rows = Portions(size, **values)
        stats = whole_stats(rows, features)
        found.append((rows.reads, stats))
    assert [reads for reads, _ in found] == [9, 6, 1]
    for _, stats in found:
        assert {k: {n: v.tobytes() for n, v in s.items()} for k, s in stats.items()} == {
            k: {n: v.tobytes() for n, v in s.items()} for k, s in found[0][1].items()
        }


def columns(rows: int, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "task_index": np.sort(rng.integers(0, 3, rows))[::-1],
        "arm": rng.normal(size=(rows, 3)).astype(np.float32),
        "grid": rng.integers(-5, 5, (rows, 2, 4)).astype(np.int32),
        "note": ["x"] * rows,
    }


def test_facts_equal_the_statistics_of_each_episode():
    facts = Facts(FEATURES, ["a", "b", "c"])
    episodes = [columns(rows, seed) for seed, rows in enumerate((1, 2, 50))]
    for episode in episodes:
        facts.add(episode)
    table = facts.table().to_pylist()
    for row, episode in zip(table, episodes, strict=True):
        order = dict.fromkeys(episode["task_index"].tolist())
        assert row["tasks"] == ["abc"[number] for number in order]
        wanted = stats_of_rows(FEATURES, episode)
        for key, kinds in wanted.items():
            for kind, value in kinds.items():
                np.testing.assert_allclose(
                    row[f"stats/{key}/{kind}"], value, rtol=1e-12, atol=1e-12
                )


def test_an_episode_has_the_statistics_of_each_column():
    episode = columns(40, seed=7)
    found = number_stats(FEATURES, episode)
    assert list(found) == ["task_index", "arm", "grid"]
    for key, kinds in found.items():
        assert_right(kinds, episode[key])


def test_scalars_bools_and_tables_have_lerobots_shapes():
    features = {
        "done": Feature("done", "bool", (1,)),
        "touch": Feature("touch", "float32", (4, 3)),
        "note": Feature("note", "string", (1,)),
    }
    touch = np.arange(24.0, dtype=np.float32).reshape(2, 4, 3)
    found = number_stats(features, {"done": [True, False], "touch": touch, "note": ["a", "b"]})
    assert set(found) == {"done", "touch"}
    assert found["done"]["mean"].tolist() == [0.5]
    assert found["touch"]["min"].tolist() == [0.0, 1.0, 2.0]
    assert found["touch"]["count"].tolist() == [2]


def test_gathered_statistics_are_those_of_all_values():
    features = {"n": Feature("n", "float64", (2,)), "p": Feature("p", "image", (2, 2, 3))}
    gathered = GatheredStats(features)
    parts = [np.random.default_rng(size).normal(size=(size, 2)) for size in (1, 5, 300)]
    for number, values in enumerate(parts):
        counted = LevelCounts()
        counted.add(np.full((2, 2, 3), number, np.uint8))
        mine = gathered.add({"n": values}, {"p": counted})
        assert_right(mine["n"], values)
        assert mine["p"]["count"].tolist() == [1]
    whole = gathered.whole()
    assert_right(whole["n"], np.concatenate(parts))
    assert whole["p"]["count"].tolist() == [3]
    np.testing.assert_allclose(whole["p"]["mean"].reshape(-1), [1 / 255] * 3)
