"""The rules of bounded staleness, as functions of clocks (MLNet sections 3.1 and 3.2; docs/protocol.md 18.6).

*Legal* weights for a worker at clock ``c`` that bears staleness ``s`` contain the updates 1 to ``c - s`` of
every worker. A node *forwards* what it withholds when its subtree reaches a multiple of ``s + 1``: so it does
whenever ``c_sub - up_clock > s``, which is the paper's "not within the staleness thresholds compared to its
parent", and since these multiples are the same at every level the delays do not add up over the levels of the
tree.
"""

from __future__ import annotations

from inaproto.wire.messages.clocks import Clocks


def model_clock(root: Clocks) -> int:
    """c_model: the least clock in the root's vector."""
    return root.minimum()


def needed(worker_clock: int, staleness: int) -> int:
    """The least c_model that is legal for the worker: ``c_worker - s``."""
    return max(0, worker_clock - staleness)


def is_legal(root: Clocks, needed_clock: int) -> bool:
    """Whether ``c_model >= c_worker - s``."""
    return model_clock(root) >= needed_clock


def forwards(sub_clock: int, up_clock: int, staleness: int) -> bool:
    """Whether a node sends its pending updates to its parent, of their own accord."""
    return sub_clock // (staleness + 1) > up_clock // (staleness + 1)
