"""Statistics that are counted digit by digit equal those of all values at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from demoreel.edit.statistics.exact import exact_stats
from demoreel.stats.running import Numbers

KINDS = ["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "uint64", "bool"]


def at_once(values: np.ndarray) -> dict[str, np.ndarray]:
    running = Numbers()
    running.add(values)
    found = running.finish()
    found.pop("count")
    return found


def in_portions(values: np.ndarray, size: int) -> dict[str, np.ndarray]:
    return exact_stats(lambda: (values[at : at + size] for at in range(0, len(values), size)))


def assert_equal(found, wanted) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if name in ("mean", "std"):
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_random_numbers(kind):
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(5000, 3)) * [1, 30, 0]).astype(kind)
    assert_equal(in_portions(values, 700), at_once(values))


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
    assert_equal(in_portions(values, size), at_once(values))


def test_what_is_not_a_number_spoils_its_dimension_only():
    values = np.arange(20, dtype=np.float64).reshape(10, 2)
    values[3, 1] = np.nan
    found = in_portions(values, 4)
    assert np.isnan(found["q50"][1])
    assert found["q50"][0] == 9.0
