"""obstore in a process where it is safe: it refuses to work in a forked child."""

from __future__ import annotations

from demoreel.storage.far.store_calls import CALLS, StoreFailure
from demoreel.storage.safe_process import SafeProcess

_PROGRAM = "from demoreel.storage.far.store_process import serve; serve()"
_process = SafeProcess("obstore", CALLS, program=_PROGRAM, failure=StoreFailure)

ask = _process.ask
"""Call a function of ``store_calls``, here or in the helper; raises ``StoreFailure``."""

serve = _process.serve
