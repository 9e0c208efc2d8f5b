"""Statistics that are counted digit by digit equal those of all values at once."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from demoreel.edit.statistics import exact as exactly
from demoreel.edit.statistics.exact import Exact
from demoreel.stats.running import Numbers

KINDS = ["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "uint64", "bool"]


def at_once(values: np.ndarray) -> dict[str, np.ndarray]:
    running = Numbers()
    running.add(values)
    found = running.finish()
    found.pop("count")
    return found


def portions(values: np.ndarray, size: int) -> list[np.ndarray]:
    """Return dimensions x values, some of them at a time."""
    cuts = range(0, len(values), size)
    return [np.ascontiguousarray(values[at : at + size].T) for at in cuts]


def in_portions(values: np.ndarray, size: int) -> dict[str, np.ndarray]:
    exact = Exact()
    while not exact.known:
        for portion in portions(values, size):
            exact.add(portion)
        exact.end_pass()
    return exact.finish()


def in_shares(values: np.ndarray, size: int, shares: int, width: int) -> dict[str, np.ndarray]:
    """Share every pass out, as if to other processes; the last shares come first."""
    exact = Exact(width)
    parts = np.array_split(np.arange(len(portions(values, size))), shares)
    while not exact.known:
        for number in reversed(range(shares)):
            share = pickle.loads(pickle.dumps(exact.share(number)))
            for at in parts[number]:
                share.add(portions(values, size)[at])
            exact.merge(share if number % 2 else pickle.loads(pickle.dumps(share)))
        exact.end_pass()
    return exact.finish()


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shares", [1, 3, 12])
def test_shares_give_the_same_bits(kind, shares, monkeypatch):
    monkeypatch.setattr(exactly, "_AT_ONCE", 1000)
    rng = np.random.default_rng(1)
    values = (rng.normal(size=(4000, 4)) * [1, 30, 0, 1e-3]).astype(kind)
    whole = in_portions(values, 550)
    parts = [in_shares(some, 550, shares, 4) for some in (values[:, :1], values[:, 1:])]
    for name, value in whole.items():
        found = np.concatenate([part[name] for part in parts])
        assert found.tobytes() == value.tobytes(), name


def test_large_whole_numbers_that_come_late():
    values = np.arange(3000, dtype=np.int64).reshape(-1, 1)
    values[2900:] += 1 << 40
    assert_equal(in_shares(values, 300, 4, 1), at_once(values))
