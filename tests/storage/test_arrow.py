"""Columns from numpy and back."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from demoreel.storage.arrow import as_numpy, from_numpy, from_texts


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "uint64", "bool"])
@pytest.mark.parametrize("step", [1, 3])
def test_numbers_there_and_back(kind, step):
    values = np.array([3, 0, 1, 7, 2, 0], kind)[::step]
    column = from_numpy(values)
    assert column.equals(pa.array(values))
    assert as_numpy(column).tobytes() == values.tobytes()


@pytest.mark.parametrize("texts", [[], ["", "a cup", "茶 ☕", ""]])
def test_texts(texts):
    column = from_texts(texts)
    column.validate(full=True)
    assert column.type == pa.string()
    assert column.to_pylist() == texts


def test_pandas_stays_out():
    script = (
        "import sys, numpy as np; from demoreel.storage.arrow import from_numpy, from_texts;"
        "from_numpy(np.arange(3)); from_texts(['a']); assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
