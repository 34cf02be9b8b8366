"""The one table of libsharp_coll's interface: structs, enumerations, constants, functions of its 3.x header.

Sizes and offsets are those of LP64. Two things are made from the table: the ctypes classes, whose sizes and
offsets are compared with it when this module is imported, and the C text of
:mod:`inaproto_adapters.sharp.abi`, which a compiler compares with the header of a site. The layout is checked
against the documented interface; it has never been used with SHARP hardware.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from inaproto.errors import InvariantBroken, Unsupported

BCAST_TYPE: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int
)
"""``bcast(ctx, buffer, bytes, root)``."""
BARRIER_TYPE: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
"""``barrier(ctx)``."""
GATHER_TYPE: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
)
"""``gather(ctx, root, own, all, bytes of one rank)``; ``all`` is valid at the root alone."""


@dataclass(frozen=True, slots=True)
class Field:
    """A member of a struct, by its path in C: ``resources.max_osts`` lies in an unnamed struct."""

    path: str
    kind: str
    """Its type in C, without its array."""
    at: int
    count: int = 1
    """Elements of an array; 1: it is none."""


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct with its size in bytes and its members, in ascending order of offsets."""

    name: str
    size: int
    fields: tuple[Field, ...]
    overlaid: tuple[Field, ...] = ()
    """Other members of a union, which only the C compiler is asked about."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function with the C types of its parameters."""

    name: str
    parameters: tuple[str, ...]
    result: str = "int"
    is_optional: bool = False
    """Older libraries lack it."""


STRUCTS: Final = (
    Struct(
        "sharp_coll_config",
        32,
        (
            Field("ib_dev_list", "const char *", 0),
            Field("user_progress_num_polls", "int", 8),
            Field("coll_timeout", "int", 12),
            Field("flags", "uint32_t", 16),
            Field("reserved", "int", 20, 3),
        ),
    ),
    Struct(
        "sharp_coll_out_of_band_colls",
        24,
        (
            Field("bcast", "int (*)(void *, void *, int, int)", 0),
            Field("barrier", "int (*)(void *)", 8),
            Field("gather", "int (*)(void *, int, void *, void *, int)", 16),
        ),
    ),
    Struct(
        "sharp_coll_init_spec",
        120,
        (
            Field("job_id", "uint64_t", 0),
            Field("world_rank", "int", 8),
            Field("world_size", "int", 12),
            Field("progress_func", "int (*)(void)", 16),
            Field("group_channel_idx", "int", 24),
            Field("config", "struct sharp_coll_config", 32),
            Field("oob_colls", "struct sharp_coll_out_of_band_colls", 64),
            Field("world_local_rank", "int", 88),
            Field("enable_thread_support", "int", 92),
            Field("oob_ctx", "void *", 96),
            Field("reserved", "int", 104, 4),
        ),
    ),
    Struct(
        "sharp_coll_comm_init_spec",
        32,
        (
            Field("rank", "int", 0),
            Field("size", "int", 4),
            Field("oob_ctx", "void *", 8),
            Field("group_world_ranks", "const uint32_t *", 16),
            Field("reserved", "int", 24, 2),
        ),
    ),
    Struct(
        "sharp_coll_caps",
        112,
        (
            Field("sharp_pkt_version", "int", 0),
            Field("reserved", "uint64_t", 8, 2),
            Field("support_mask.dtypes", "uint64_t", 24),
            Field("support_mask.tag_dtypes", "uint64_t", 32),
            Field("support_mask.reduce_ops", "uint64_t", 40),
            Field("support_mask.feature_mask", "uint64_t", 48),
            Field("support_mask.reserved", "uint64_t", 56, 4),
            Field("resources.max_osts", "int", 88),
            Field("resources.user_data_per_ost", "int", 92),
            Field("resources.max_groups", "int", 96),
            Field("resources.max_group_channels", "int", 100),
            Field("resources.osts_per_group", "int", 104),
        ),
    ),
    Struct(
        "sharp_coll_data_desc",
        40,
        (
            Field("type", "enum sharp_data_buffer_type", 0),
            Field("mem_type", "enum sharp_data_memory_type", 4),
            Field("reserved", "int", 8, 2),
            Field("buffer.ptr", "void *", 16),
            Field("buffer.length", "size_t", 24),
            Field("buffer.mem_handle", "void *", 32),
        ),
        overlaid=(
            Field("iov.count", "unsigned", 16),
            Field("iov.vector", "struct sharp_data_iov *", 24),
        ),
    ),
    Struct(
        "sharp_coll_reduce_spec",
        136,
        (
            Field("root", "int", 0),
            Field("sbuf_desc", "struct sharp_coll_data_desc", 8),
            Field("rbuf_desc", "struct sharp_coll_data_desc", 48),
            Field("dtype", "enum sharp_datatype", 88),
            Field("length", "size_t", 96),
            Field("op", "enum sharp_reduce_op", 104),
            Field("tag_dtype", "enum sharp_datatype", 108),
            Field("aggr_mode", "enum sharp_aggregation_mode", 112),
            Field("stream_lock_batch_size", "int", 116),
            Field("offset", "size_t", 120),
            Field("reserved", "int", 128, 2),
        ),
    ),
    Struct(
        "sharp_coll_bcast_spec",
        72,
        (
            Field("root", "int", 0),
            Field("buf_desc", "struct sharp_coll_data_desc", 8),
            Field("size", "size_t", 48),
            Field("reserved", "int", 56, 4),
        ),
    ),
    Struct(
        "sharp_coll_gather_spec",
        120,
        (
            Field("sbuf_desc", "struct sharp_coll_data_desc", 0),
            Field("rbuf_desc", "struct sharp_coll_data_desc", 40),
            Field("dtype", "enum sharp_datatype", 80),
            Field("size", "size_t", 88),
            Field("offset", "size_t", 96),
            Field("reserved", "int", 104, 4),
        ),
    ),
    Struct(
        "sharp_coll_reg_params",
        24,
        (
            Field("field_mask", "uint64_t", 0),
            Field("dmabuf_fd", "int", 8),
            Field("dmabuf_offset", "size_t", 16),
        ),
    ),
)

DTYPES: Final = {
    "SHARP_DTYPE_UNSIGNED": 0,
    "SHARP_DTYPE_INT": 1,
    "SHARP_DTYPE_UNSIGNED_LONG": 2,
    "SHARP_DTYPE_LONG": 3,
    "SHARP_DTYPE_FLOAT": 4,
    "SHARP_DTYPE_DOUBLE": 5,
    "SHARP_DTYPE_UNSIGNED_SHORT": 6,
    "SHARP_DTYPE_SHORT": 7,
    "SHARP_DTYPE_FLOAT_SHORT": 8,
    "SHARP_DTYPE_BFLOAT16": 9,
    "SHARP_DTYPE_UINT8": 10,
    "SHARP_DTYPE_INT8": 11,
    "SHARP_DTYPE_NULL": 12,
}
"""Before 3.0 the last three types were not there, and NULL was 9."""
_OPS: Final = (
    *("MAX", "MIN", "SUM", "PROD", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR"),
    *("MAXLOC", "MINLOC", "NULL"),
)
OPS: Final = {f"SHARP_OP_{name}": value for value, name in enumerate(_OPS)}
ERRORS: Final = {
    "SHARP_COLL_SUCCESS": 0,
    "SHARP_COLL_ERROR": -1,
    "SHARP_COLL_ENOT_SUPP": -2,
    "SHARP_COLL_ENOMEM": -3,
    "SHARP_COLL_EGROUP_ALLOC": -4,
    "SHARP_COLL_ECONN_TREE": -5,
    "SHARP_COLL_EGROUP_JOIN": -6,
    "SHARP_COLL_EQUOTA": -7,
    "SHARP_COLL_ESESS_INIT": -8,
    "SHARP_COLL_EDEV": -9,
    "SHARP_COLL_EINVAL": -10,
    "SHARP_COLL_EJOB_CREATE": -11,
    "SHARP_COLL_ETREE_INFO": -12,
    "SHARP_COLL_ENOTREE": -13,
    "SHARP_COLL_EGROUP_ID": -14,
    "SHARP_COLL_EOOB": -15,
    "SHARP_COLL_EGROUP_MCAST": -16,
    "SHARP_COLL_EGROUP_TRIM": -17,
    "SHARP_COLL_ELOCK_FAILED": -18,
    "SHARP_COLL_ELOCK_DENIED": -19,
    "SHARP_COLL_ENO_RESOURCE": -20,
}
FEATURE_LLT: Final = 1
FEATURE_SAT: Final = 4
CONSTANTS: Final[Mapping[str, int]] = {
    **DTYPES,
    **OPS,
    **ERRORS,
    "SHARP_AGGREGATION_NONE": 0,
    "SHARP_AGGREGATION_DATAGRAM": 1,
    "SHARP_AGGREGATION_STREAMING": 2,
    "SHARP_DATA_BUFFER": 0,
    "SHARP_DATA_IOV": 1,
    "SHARP_MEM_TYPE_HOST": 0,
    "SHARP_MEM_TYPE_CUDA": 1,
    "SHARP_FEATURE_LLT": FEATURE_LLT,
    "SHARP_FEATURE_REPRODUCIBLE": 2,
    "SHARP_FEATURE_SAT": FEATURE_SAT,
    "SHARP_FEATURE_SAT_EXCLUSIVE_LOCK": 8,
    "SHARP_COLL_HIDE_ERRORS": 1,
    "SHARP_COLL_DISABLE_LAZY_GROUP_RESOURCE_ALLOC": 2,
    "SHARP_COLL_REG_FIELD_DMABUF_FD": 1,
    "SHARP_COLL_REG_FIELD_DMABUF_OFFSET": 2,
    "SHARP_COLL_CONFIG_PRINT_CONFIG": 1,
    "SHARP_COLL_CONFIG_PRINT_HEADER": 2,
    "SHARP_COLL_CONFIG_PRINT_DOC": 4,
    "SHARP_COLL_CONFIG_PRINT_HIDDEN": 8,
}
ENUMS: Final = (
    "sharp_datatype",
    "sharp_reduce_op",
    "sharp_aggregation_mode",
    "sharp_data_buffer_type",
    "sharp_data_memory_type",
)
"""Enumerations that lie in structs: each takes 4 bytes."""
DEFAULT_CONFIG: Final = "sharp_coll_default_config"
"""A constant struct, and no function."""

_CONTEXT: Final = "struct sharp_coll_context *"
_COMM: Final = "struct sharp_coll_comm *"
_REDUCE: Final = "struct sharp_coll_reduce_spec *"
_BCAST: Final = "struct sharp_coll_bcast_spec *"
_GATHER: Final = "struct sharp_coll_gather_spec *"
_REDUCES: Final = {"allreduce": False, "reduce": False, "reduce_scatter": True}
FUNCTIONS: Final = (
    Function("sharp_coll_init", ("struct sharp_coll_init_spec *", f"{_CONTEXT}*")),
    Function("sharp_coll_finalize", (_CONTEXT,)),
    Function("sharp_coll_caps_query", (_CONTEXT, "struct sharp_coll_caps *")),
    Function("sharp_coll_progress", (_CONTEXT,)),
    Function("sharp_coll_dump_stats", (_CONTEXT,)),
    Function("sharp_coll_comm_init", (_CONTEXT, "struct sharp_coll_comm_init_spec *", f"{_COMM}*")),
    Function("sharp_coll_comm_destroy", (_COMM,)),
    Function("sharp_coll_reg_mr", (_CONTEXT, "void *", "size_t", "void **")),
    Function(
        "sharp_coll_reg_mr_v2",
        (_CONTEXT, "void *", "size_t", "const struct sharp_coll_reg_params *", "void **"),
        is_optional=True,
    ),
    Function("sharp_coll_dereg_mr", (_CONTEXT, "void *")),
    *(
        Function(f"sharp_coll_do_{name}", (_COMM, _REDUCE), is_optional=optional)
        for name, optional in _REDUCES.items()
    ),
    *(
        Function(f"sharp_coll_do_{name}_nb", (_COMM, _REDUCE, "void **"), is_optional=optional)
        for name, optional in _REDUCES.items()
    ),
    Function("sharp_coll_do_allgather", (_COMM, _GATHER), is_optional=True),
    Function("sharp_coll_do_allgather_nb", (_COMM, _GATHER, "void **"), is_optional=True),
    Function("sharp_coll_do_bcast", (_COMM, _BCAST)),
    Function("sharp_coll_do_bcast_nb", (_COMM, _BCAST, "void **")),
    Function("sharp_coll_do_barrier", (_COMM,)),
    Function("sharp_coll_do_barrier_nb", (_COMM, "void **")),
    Function("sharp_coll_req_test", ("void *",)),
    Function("sharp_coll_req_wait", ("void *",)),
    Function("sharp_coll_req_free", ("void *",)),
    Function("sharp_coll_strerror", ("int",), "const char *"),
    Function("sharp_coll_print_config", ("FILE *", "enum config_print_flags", "const char *")),
)

_KINDS: Final[dict[str, Any]] = {
    "int": ctypes.c_int,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "const char *": ctypes.c_char_p,
    "int (*)(void *, void *, int, int)": BCAST_TYPE,
    "int (*)(void *)": BARRIER_TYPE,
    "int (*)(void *, int, void *, void *, int)": GATHER_TYPE,
    "int (*)(void)": ctypes.c_void_p,
}


def python_kind(kind: str) -> Any:
    """The ctypes type of a C type; every other pointer is an address."""
    if kind in _KINDS:
        return _KINDS[kind]
    if kind.startswith("enum "):
        return ctypes.c_int
    if kind.endswith("*"):
        return ctypes.c_void_p
    raise InvariantBroken(f"no ctypes type is known for {kind!r}")


def attribute(path: str) -> str:
    """The name that a member has in its ctypes class: ``buffer.ptr`` is ``buffer_ptr``."""
    return path.replace(".", "_")


def _made(struct: Struct) -> Any:
    members = []
    for field in struct.fields:
        kind = python_kind(field.kind)
        members.append((attribute(field.path), kind * field.count if field.count > 1 else kind))
    made: Any = type(struct.name, (ctypes.Structure,), {"_fields_": members, "__doc__": struct.name})
    _compare(struct, made)
    _KINDS[f"struct {struct.name}"] = made
    return made


def _compare(struct: Struct, made: Any) -> None:
    """Raises ``Unsupported`` where this platform lays a struct out in another way than LP64 does."""
    found = {field.path: getattr(made, attribute(field.path)).offset for field in struct.fields}
    wrong = [
        f"{struct.name}.{field.path} at {found[field.path]}, not {field.at}"
        for field in struct.fields
        if found[field.path] != field.at
    ]
    if ctypes.sizeof(made) != struct.size:
        wrong.append(f"{struct.name} has {ctypes.sizeof(made)} bytes, not {struct.size}")
    if wrong:
        raise Unsupported("SHARP", f"its structs are laid out in another way here: {'; '.join(wrong)}")


CLASSES: Final[dict[str, Any]] = {struct.name: _made(struct) for struct in STRUCTS}
"""The ctypes classes, by the names of their structs."""
