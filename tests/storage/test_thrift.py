"""Thrift's structs, read and written again."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demoreel.storage.thrift import (
    BINARY,
    BYTE,
    DOUBLE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    NotThriftError,
    Reading,
    to_bytes,
)

fields = st.recursive(
    st.one_of(
        st.tuples(st.just(I32), st.integers(-(2**31), 2**31 - 1)),
        st.tuples(st.just(I64), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(st.just(BYTE), st.integers(0, 255)),
        st.tuples(st.just(DOUBLE), st.binary(min_size=8, max_size=8)),
        st.tuples(st.just(BINARY), st.binary(max_size=300)),
        st.tuples(
            st.just(LIST), st.tuples(st.just(I64), st.lists(st.integers(-9, 2**40), max_size=40))
        ),
    ),
    lambda inner: st.tuples(
        st.just(STRUCT), st.dictionaries(st.integers(1, 300), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.integers(1, 300), fields, max_size=8))
def test_structs_survive(struct):
    data = to_bytes(struct)
    reading = Reading(data)
    assert reading.struct() == struct
    assert reading.at == len(data)


def test_truth_lies_in_the_type():
    assert Reading(to_bytes({1: (TRUE, True), 2: (TRUE, False)})).struct() == {
        1: (1, True),
        2: (2, False),
    }


def test_parquets_own_footer_is_written_as_it_was():
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1, 2], "b": [[1.0], [2.0]], "c": ["x", None]}), sink)
    whole = sink.getvalue().to_pybytes()
    footer = whole[-8 - int.from_bytes(whole[-8:-4], "little") : -8]
    assert to_bytes(Reading(footer).struct()) == footer


@given(st.binary(max_size=200))
def test_any_bytes_are_a_struct_or_an_error(data):
    try:
        Reading(data).struct()
    except NotThriftError:
        return
    assert b"\0" in data


@pytest.mark.parametrize("data", [b"", b"\x15", b"\x18\xff\xff\xff\xff\x0f", b"\x1c" * 100])
def test_what_does_not_end_is_an_error(data):
    with pytest.raises(NotThriftError):
        Reading(data).struct()
