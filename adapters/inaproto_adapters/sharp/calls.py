"""The blocking calls of one context, as the library's public users make them; run in the context's thread.

Each returns an ``Outcome`` and raises nothing for what the library or the network do.
"""

from __future__ import annotations

import ctypes
from typing import Any

from inaproto.core.collective.events import FINE, Outcome, Weight
from inaproto.wire.ina_header import Dtype, Op
from inaproto_adapters.sharp.callbacks import table
from inaproto_adapters.sharp.codes import outcome_of
from inaproto_adapters.sharp.config import DTYPE_NUMBERS, OP_NUMBERS, SharpConfig
from inaproto_adapters.sharp.layout import CLASSES
from inaproto_adapters.sharp.library import SharpLibrary
from inaproto_adapters.sharp.memory import Region


class ContextCalls:
    """See the module; ``key`` is what callbacks are given."""

    def __init__(self, library: SharpLibrary, config: SharpConfig, rank: int, size: int, key: int) -> None:
        self._library = library
        self._config = config
        self._rank, self._size, self._key = rank, size, key
        self._devices = config.devices.encode()
        self.context: Any = None
        self.comm: Any = None
        self.caps: Any = None

    def init(self, job_id: int) -> Outcome:
        """Collective: a context of the job, whose switches do what is offered."""
        spec = CLASSES["sharp_coll_init_spec"]()
        spec.job_id = job_id
        spec.world_rank, spec.world_size = self._rank, self._size
        spec.config = self._library.default_config()
        if self._devices:
            spec.config.ib_dev_list = self._devices
        spec.config.coll_timeout = self._config.coll_timeout_ms
        spec.oob_colls = table()
        spec.oob_ctx = self._key
        spec.enable_thread_support = 1
        context = ctypes.c_void_p()
        code = self._library.function("init")(ctypes.byref(spec), ctypes.byref(context))
        if code or context.value is None:
            return outcome_of(code or -1)
        self.context = context.value
        unfit = self._look_at_caps()
        if unfit.weight:
            self.finalize()
        return unfit

    def _look_at_caps(self) -> Outcome:
        self.caps = CLASSES["sharp_coll_caps"]()
        code = self._library.function("caps_query")(self.context, ctypes.byref(self.caps))
        if code:
            return outcome_of(code)
        lacks = self._config.lacks(self.caps.support_mask_dtypes, self.caps.support_mask_reduce_ops)
        return Outcome(-2, Weight.PERMANENT, lacks) if lacks else FINE

    def comm_init(self) -> Outcome:
        """Collective: a group of all ranks of the job."""
        spec = CLASSES["sharp_coll_comm_init_spec"]()
        spec.rank, spec.size, spec.oob_ctx = self._rank, self._size, self._key
        comm = ctypes.c_void_p()
        code = self._library.function("comm_init")(self.context, ctypes.byref(spec), ctypes.byref(comm))
        if code or comm.value is None:
            return outcome_of(code or -1)
        self.comm = comm.value
        return FINE

    def register(self, region: Region) -> Outcome:
        """The region's handle is set."""
        handle = ctypes.c_void_p()
        code = self._library.function("reg_mr")(
            self.context, region.address, region.nbytes, ctypes.byref(handle)
        )
        if code or handle.value is None:
            return outcome_of(code or -1)
        region.handle = handle.value
        return FINE

    def deregister(self, regions: list[Region]) -> Outcome:
        """All of them, whatever one of them says; the first failure."""
        codes = [
            self._library.function("dereg_mr")(self.context, its.handle) for its in regions if its.handle
        ]
        return outcome_of(next((code for code in codes if code), 0))

    def destroy(self) -> Outcome:
        """Undoes ``comm_init``."""
        comm, self.comm = self.comm, None
        return outcome_of(self._library.function("comm_destroy")(comm))

    def finalize(self) -> Outcome:
        """Undoes ``init``."""
        context, self.context = self.context, None
        return outcome_of(self._library.function("finalize")(context))

    def all_reduce_spec(self, source: Region, into: Region, nbytes: int, dtype: Dtype, op: Op) -> Any:
        """The struct of an operation; its length counts elements, those of the descriptors bytes."""
        spec = CLASSES["sharp_coll_reduce_spec"]()
        for desc, region in ((spec.sbuf_desc, source), (spec.rbuf_desc, into)):
            desc.buffer_ptr, desc.buffer_length = region.address, nbytes
            desc.buffer_mem_handle = region.handle
        spec.dtype, spec.op = DTYPE_NUMBERS[dtype], OP_NUMBERS[op]
        spec.length = nbytes // dtype.itemsize
        spec.aggr_mode = self._config.aggregation
        return spec
