"""What rows tell of their episode."""

from __future__ import annotations

import numpy as np

from demoreel.edit.statistics.facts import Facts, stats_of_rows
from demoreel.model import Feature
from demoreel.stats.running import episode_stats, finish

FEATURES = {
    "task_index": Feature("task_index", "int64", (1,)),
    "arm": Feature("arm", "float32", (3,)),
    "grid": Feature("grid", "int32", (2, 4)),
    "note": Feature("note", "string", (1,)),
}


def columns(rows: int, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "task_index": np.sort(rng.integers(0, 3, rows))[::-1],
        "arm": rng.normal(size=(rows, 3)).astype(np.float32),
        "grid": rng.integers(-5, 5, (rows, 2, 4)).astype(np.int32),
        "note": ["x"] * rows,
    }


def test_facts_equal_the_running_statistics():
    facts = Facts(FEATURES, ["a", "b", "c"])
    episodes = [columns(rows, seed) for seed, rows in enumerate((1, 2, 50))]
    for episode in episodes:
        facts.add(episode)
    table = facts.table().to_pylist()
    for row, episode in zip(table, episodes, strict=True):
        order = dict.fromkeys(episode["task_index"].tolist())
        assert row["tasks"] == ["abc"[number] for number in order]
        wanted = finish(episode_stats(FEATURES, episode))
        for key, kinds in wanted.items():
            for kind, value in kinds.items():
                np.testing.assert_allclose(
                    row[f"stats/{key}/{kind}"], value, rtol=1e-12, atol=1e-12
                )


def test_what_is_not_a_number_is_not_hidden():
    values = np.array([[1.0, np.nan, 3.0], [1.0, 2.0, 3.0]])
    found = stats_of_rows(values)
    assert np.isnan(found["min"][0])
    assert found["q50"][1] == 2.0
