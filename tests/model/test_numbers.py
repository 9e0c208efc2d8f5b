"""Numbers in another type: as they were, or an error."""

from __future__ import annotations

import numpy as np
import pytest

from demoreel.errors import ArgumentError
from demoreel.model import Feature
from demoreel.model.numbers import cast_numbers, misfit

INT64 = np.iinfo(np.int64)
UINT64 = np.iinfo(np.uint64)


@pytest.mark.parametrize(
    ("values", "dtype", "place"),
    [
        ([1, 300], "int8", 1),
        ([127, -128], "int8", None),
        ([0, 2**40], "int32", 1),
        ([3, -1], "uint8", 1),
        (np.array([1, 2**63], np.uint64), "int64", 1),
        (np.array([UINT64.max], np.uint64), "uint64", None),
        (np.array([INT64.min, -1]), "uint64", 0),
        ([1.0, 2.5], "int64", 1),
        ([1.0, np.nan], "int32", 1),
        ([2.0**63], "int64", 0),
        ([-(2.0**63)], "int64", None),
        ([2.0**64], "uint64", 0),
        ([float(INT64.max - 1024)], "int64", None),
        ([0.1, -1e30], "float32", None),
        ([1.0, 1e39], "float32", 1),
        ([np.inf, np.nan], "float32", None),
        ([1, 70000], "float16", 1),
        ([2**53 + 1], "float32", None),
        ([0, 1, 2], "bool", 2),
        ([True, False], "int8", None),
        ([], "int8", None),
    ],
)
def test_the_first_value_that_does_not_fit_is_found(values, dtype, place):
    assert misfit(np.asarray(values), np.dtype(dtype)) == place


def test_an_error_names_feature_value_range_and_frame():
    feature = Feature("joints", "int8", (2,))
    with pytest.raises(ArgumentError) as caught:
        cast_numbers(np.array([[1, 2], [3, 300]]), feature, rows=True)
    assert all(word in str(caught.value) for word in ("'joints'", "300", "-128 to 127", "frame: 1"))


@pytest.mark.parametrize("values", [[1.0], ["a"], [1j], np.array([None]), np.array(["1"], "M8[s]")])
def test_other_kinds_do_not_fit(values):
    with pytest.raises(ArgumentError, match="would not hold it"):
        cast_numbers(np.asarray(values), Feature("x", "int64", (1,)), rows=True)


def test_whole_floats_are_integers_where_the_caller_says_so():
    feature = Feature("x", "int16", (1,))
    found = cast_numbers(np.array([1.0, -2.0]), feature, rows=True, whole_floats=True)
    assert found.dtype == np.int16
    assert found.tolist() == [1, -2]
    with pytest.raises(ArgumentError, match=r"2\.5"):
        cast_numbers(np.array([1.0, 2.5]), feature, rows=True, whole_floats=True)
