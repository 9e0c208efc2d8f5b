"""Lance in a process where it is safe: this one, or a helper.

Lance runs on threads of its own, and a fork copies none of them. Children of a process that has
used Lance may crash or hang when they use it too, even on tables that they open anew: 1 to 8 of a
hundred did (pylance 14; lancedb issue 3350 is about the same). Processes that only carry Lance's
memory along, and those that run another program, never did.
"""

from __future__ import annotations

from demoreel.storage.lance_calls import CALLS, LanceFailure
from demoreel.storage.safe_process import SafeProcess

_PROGRAM = "from demoreel.storage.lance_process import serve; serve()"
_process = SafeProcess("lance", CALLS, program=_PROGRAM, failure=LanceFailure)

ask = _process.ask
"""Call a function of ``lance_calls``, here or in the helper; raises ``LanceFailure``."""

serve = _process.serve


def may_use_lance() -> bool:
    """Whether this process may use Lance itself."""
    return _process.is_here
