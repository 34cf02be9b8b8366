"""The rules of the accelerator: what becomes of each frame (NetReduce sections 3.1, 3.2, 4).

It does with one frame after the other what the software core does with one in a step, rule by rule and in the
same order (``inaproto.core.switch``: ``accelerator``, ``ingest``, ``emission``, ``lookup_table``):

- *lookup*: the connection, then the message by PSN: latest first, then the others in order;
- *tenants*: a region belongs to one message; the bits of a slot count only if they are of its message;
- *order*: results leave at the frontier, which is one for all flows of a ring;
- *replay*: what comes again for a slot that is full is answered on its own flow; short holes before
  it are filled, but on selective rings;
- *gap*: a flow whose own packet is missing gets one later result, once per gap, unless its sender went back;
- *refusal*: ranks that disagree fault the ring, and nothing of it leaves any more.

A frame is worked off whole, with all that leaves because of it, before the next one is looked at. What a host
sees is therefore the same whatever the bus width, and whatever the FIFOs do.

It is one state machine. A function a concern adds its states; what states of several files share is in
``work``. The way of a frame: ``incoming``, ``messages``, ``replay``, ``outgoing``, ``gaps``; tables of the
control plane: ``control``. Of rings that span several switches (section 3.3): ``tree`` makes packets for
other switches, ``above`` takes results, ``notes`` and ``learnt`` serve connections that begin elsewhere. They
are there if ``Parameters.trees`` says so.

Departures from the core: no selective repairs or early packets, no steering, no selective rings and no rings
of pools through several switches; tagged frames are bridged; a packet whose payload and pad are no whole
words counts as one with a wrong ICRC; f64 and i64 are refused.
"""

from inaproto_hil.rtl.engine.control import TABLE_CONNECTION, TABLE_RING, TABLE_STATE
from inaproto_hil.rtl.engine.engine import Engine
from inaproto_hil.rtl.engine.work import ANSWER, COMMAND, FAULT

__all__ = ["ANSWER", "COMMAND", "FAULT", "TABLE_CONNECTION", "TABLE_RING", "TABLE_STATE", "Engine"]
