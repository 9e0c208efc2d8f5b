"""For tests of demoreel and of what is built on it: datasets made to order, images that tell.

``LayoutTests`` is the conformance suite that every layout passes, ``StoreTests`` the one of stores;
both need pytest.
"""

from typing import TYPE_CHECKING, Any

from demoreel.testing.factory import make_dataset
from demoreel.testing.stamp import Stamp, read_stamp, stamp

if TYPE_CHECKING:
    from demoreel.testing.store_suite import StoreTests
    from demoreel.testing.suite import LayoutTests

__all__ = ["LayoutTests", "Stamp", "StoreTests", "make_dataset", "read_stamp", "stamp"]


def __getattr__(name: str) -> Any:
    if name == "LayoutTests":
        from demoreel.testing.suite import LayoutTests

        return LayoutTests
    if name == "StoreTests":
        from demoreel.testing.store_suite import StoreTests

        return StoreTests
    raise AttributeError(f"module 'demoreel.testing' has no attribute {name!r}")
