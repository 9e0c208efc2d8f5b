import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoreel.errors import ArgumentError
from demoreel.model import DepthCode
from demoreel.model.depth import LARGEST_CODE, depth_table, encode_depth

codes = st.builds(
    DepthCode,
    minimum=st.floats(0.01, 1.0),
    maximum=st.floats(2.0, 20.0),
    shift=st.floats(0.0, 5.0),
    log=st.booleans(),
)


@given(codes)
def test_every_code_comes_back(code):
    metres = depth_table(code, unit="m")
    found = encode_depth(metres, code)
    # In float32 the finest steps of an extreme code may fall together.
    assert np.abs(found.astype(int) - np.arange(LARGEST_CODE + 1)).max() <= 1


@given(codes, st.integers(0, 65535))
def test_a_depth_comes_back_within_half_a_step(code, millimetres):
    low, high = round(code.minimum * 1000) + 1, int(code.maximum * 1000) - 1
    depth = np.array([np.clip(millimetres, low, high)], np.uint16)
    number = int(encode_depth(depth, code)[0])
    metres = depth_table(code, unit="m")
    near = metres[max(0, number - 1) : number + 2]
    assert abs(metres[number] - depth[0] / 1000) <= np.diff(near).max() * 0.51 + 1e-5


@given(codes)
def test_millimetres_are_whole_rising_and_within_the_range(code):
    table = depth_table(code)
    assert table.dtype == np.float32
    assert np.array_equal(table, np.rint(table))
    assert (np.diff(table) >= 0).all()
    assert table[0] == round(code.minimum * 1000)
    assert table[-1] == pytest.approx(code.maximum * 1000, abs=1)


def test_metres_and_millimetres_get_the_same_code():
    millimetres = np.arange(10, 10000, 7, dtype=np.uint16)
    metres = (millimetres / 1000).astype(np.float32)
    one, two = encode_depth(millimetres, DepthCode()), encode_depth(metres, DepthCode())
    assert np.abs(one.astype(int) - two.astype(int)).max() <= 1
    assert (one == two).mean() > 0.99


def test_what_lies_outside_goes_to_the_ends():
    found = encode_depth(np.array([0, 5, 10000, 60000], np.uint16), DepthCode())
    assert found.tolist() == [0, 0, LARGEST_CODE, LARGEST_CODE]
    strange = encode_depth(np.array([np.nan, np.inf, -np.inf, -9.0], np.float32), DepthCode())
    assert strange.tolist() == [0, LARGEST_CODE, 0, 0]


def test_the_table_cannot_be_changed_by_its_users():
    with pytest.raises(ValueError, match="read-only"):
        depth_table(DepthCode())[0] = 1


@pytest.mark.parametrize(
    "code", [DepthCode(minimum=0.0, shift=0.0), DepthCode(minimum=2.0, maximum=1.0)]
)
def test_codes_that_make_no_sense_are_refused(code):
    with pytest.raises(ArgumentError, match="code"):
        depth_table(code)
    with pytest.raises(ArgumentError, match="code"):
        encode_depth(np.zeros(3, np.uint16), code)


def test_wrong_units_and_types_are_refused():
    with pytest.raises(ArgumentError, match="'mm' or 'm'"):
        depth_table(DepthCode(), unit="cm")
    with pytest.raises(ArgumentError, match="bool"):
        encode_depth(np.zeros(3, bool), DepthCode())
