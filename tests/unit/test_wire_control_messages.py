"""Typed control messages: every one there and back, every field checked, errors that name the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inaproto.errors import (
    JOB_ERRORS,
    DecodeError,
    JobError,
    LocalMisuse,
    RankLost,
    TensorMismatch,
)
from inaproto.wire.control import ARRAY_ITEMS_MAX, DEPTH_MAX, ControlDecoder, ControlRecord
from inaproto.wire.control_messages import (
    MESSAGES,
    Error,
    Failed,
    Halt,
    Hello,
    IntoAddress,
    JobStatus,
    Member,
    Message,
    OutAddress,
    Ping,
    Ring,
    StatusReply,
    UnknownMessage,
    decode_message,
    encode_message,
    error_message,
    failed_message,
    job_error,
)
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages import fields as control_fields
from inaproto.wire.messages.client import AllReduce, Done, Join, Ok
from inaproto.wire.messages.clocks import CLOCK_MAX, Clocks, ClocksKind, WorkerId
from inaproto.wire.messages.fields import Many, Record, field_kinds, is_bounded
from inaproto.wire.messages.models import Epoch, EpochKind
from inaproto.wire.messages.switch import InputKind, NoteKind, VirtualConnection
from inaproto.wire.messages.trees import TreeKind

OUT = OutAddress(mac=b"\x52\x54\0\0\0\1", ip=b"\x0a\0\0\1", qpn=17, psn=0x100)
INTO = IntoAddress(
    mac=b"\x52\x54\0\0\0\2",
    ip=b"\x0a\0\0\2",
    qpn=18,
    psn=0x200,
    va=1 << 40,
    rkey=3,
    slots=4,
    slot_bytes=1 << 18,
)
MEMBER = Member(
    id=5,
    job="digits",
    rank=1,
    size=4,
    key="secret",
    pid=4711,
    host="h1",
    mtu=1024,
    window_messages=4,
    message_packets=170,
    out=OUT,
    into=INTO,
)


def record_of(message: Message) -> ControlRecord:
    (record,) = ControlDecoder().feed(encode_message(message))
    return record


def values_of(kind: control_fields.Kind) -> st.SearchStrategy[Any]:
    match kind:
        case control_fields.Integer(low, high):
            return st.integers(low, high)
        case control_fields.Text(bytes_max, bytes_min):
            return st.text(min_size=bytes_min, max_size=min(bytes_max // 4, 40))
        case control_fields.Boolean():
            return st.booleans()
        case control_fields.Choice(among):
            return st.sampled_from(among)
        case control_fields.OneOf(values):
            return st.sampled_from(values)
        case control_fields.Octets(nbytes):
            return st.binary(min_size=nbytes, max_size=nbytes)
        case control_fields.Blob(most):
            return st.binary(max_size=min(most, 40))
        case control_fields.Behind(least):
            array = st.builds(np.zeros, st.just(0), st.just(np.uint8))
            return array if least else array | st.none()
        case ClocksKind():
            workers = st.integers(0, CLOCK_MAX).map(WorkerId)
            return st.dictionaries(workers, st.integers(0, CLOCK_MAX), max_size=5).map(Clocks)
        case EpochKind():
            return st.builds(Epoch, *[st.integers(0, CLOCK_MAX)] * 4)
        case control_fields.Many(item, items_max):
            return st.lists(values_of(item), max_size=min(items_max, 5)).map(tuple)
        case InputKind():
            return st.integers(0, 0xFFFF) | records_of(VirtualConnection)
        case NoteKind():
            return st.tuples(st.integers(0, 0xFFFF), records_of(VirtualConnection))
        case TreeKind(cls):
            return records_of(cls).map(lambda said: kind.take(control_fields.give_fields(said)))
        case control_fields.Record(cls):
            return records_of(cls)
        case control_fields.FreeMap():
            return st.dictionaries(st.text(max_size=5), st.integers(0, 9) | st.text(max_size=5), max_size=3)
        case _:
            raise AssertionError(kind)


def records_of(cls: type[Any]) -> st.SearchStrategy[Any]:
    given_fields = {name: values_of(kind) for name, (kind, _) in control_fields.field_kinds(cls).items()}
    return st.builds(cls, **given_fields)


@pytest.mark.parametrize("cls", MESSAGES.values(), ids=MESSAGES)
@settings(max_examples=20)
@given(data=st.data())
def test_every_message_there_and_back(cls: type[Message], data: st.DataObject) -> None:
    message = data.draw(records_of(cls))
    assert decode_message(record_of(message)) == message


def test_all_messages_of_the_protocol() -> None:
    names = (
        "join rejoin join_waits joined buffer ok all_reduce filled taken done has_left leave status "
        "status_reply error hello welcome member rank_refused ring ready start op_started ask_calls calls "
        "job_status broken halt halted gone regroup regrouped left closed failed ping pong "
        "ina_park ina_parked ina_stands collective_word "
        "switch_hello switch_welcome switch_admit switch_opened trunk_report ring_install ring_remove "
        "ring_installed install_refused ring_faulted link_paused "
        "capture capture_begun capture_end capture_ended "
        "agent_hello agent_welcome agent_wishes agent_report agent_where agent_placement "
        "slot_order slot_report slot_hint tree_wishes tree_report "
        "sharing_prepare sharing_commit sharing_abort sharing_end sharing_vote sharing_refusal sharing_done "
        "sharing_drained sharing_ask sharing_seats sharing_pattern sharing_progress sharing_ask_peer "
        "sharing_tell_peer "
        "model_join model_joined model_clock model_pull model_leave model_save model_done model_pulled "
        "overlay_hello overlay_state overlay_welcome overlay_queue_pair overlay_queue_pair_ready "
        "overlay_no_queue_pair "
        "push_pull_attach push_pull_push push_pull_request push_pull_flush "
        "push_pull_heartbeat push_pull_detach push_pull_attached push_pull_detached push_pull_weights "
        "push_pull_merged push_pull_mode push_pull_reshaped push_pull_alive shard_state shard_change "
        "link_probe link_probe_word link_probed"
    )
    assert list(MESSAGES) == names.split()


@pytest.mark.parametrize("cls", MESSAGES.values(), ids=MESSAGES)
@settings(max_examples=3)
@given(data=st.data())
def test_every_field_is_checked(cls: type[Message], data: st.DataObject) -> None:
    """A value of a kind that no field has, and absence, are refused by name, both ways."""
    message = data.draw(records_of(cls))
    record = record_of(message)
    for field in fields(cls):
        kind, optional = control_fields.field_kinds(cls)[field.name]
        key = control_fields.ARRAYS if isinstance(kind, control_fields.Behind) else field.name
        with pytest.raises(DecodeError, match=rf"^control {cls.TYPE}: {key} is 1\.5, not "):
            decode_message(record | {key: 1.5})
        with pytest.raises(LocalMisuse, match=rf"^control {cls.TYPE}\.{field.name} is 1\.5, not "):
            encode_message(replace(message, **{field.name: 1.5}))
        if not optional:
            missing = {name: value for name, value in record.items() if name != key}
            with pytest.raises(DecodeError, match=rf"{key} is missing"):
                decode_message(missing)


def test_unknown_fields_are_ignored() -> None:
    record = record_of(MEMBER)
    record["colour"] = "blue"
    record["out"] = record["out"] | {"speed": 100}
    assert decode_message(record) == MEMBER


def test_an_unknown_type_is_answered_not_refused() -> None:
    record = {"v": 1, "type": "teleport", "id": 9, "to": "mars"}
    assert decode_message(record) == UnknownMessage(type="teleport", id=9)
    with pytest.raises(LocalMisuse, match="UnknownMessage is not a message to be sent"):
        encode_message(UnknownMessage(type="teleport", id=9))
    with pytest.raises(LocalMisuse, match="Message is not a message to be sent"):
        encode_message(Message())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rank": -1}, "rank is -1, not an integer from 0 to 65535"),
        ({"rank": True}, "rank is True, not an integer"),
        ({"rank": 1 << 16}, "rank is 65536"),
        ({"size": 0}, "size is 0, not an integer from 1 to 65535"),
        ({"mtu": 128}, "mtu is 128, not an integer from 256 to 4096"),
        ({"job": ""}, "job is a text of 0 bytes, not 1 to 128"),
        ({"job": "\N{SNOWMAN}" * 43}, "job is a text of 129 bytes, not 1 to 128"),
        ({"job": b"digits"}, "job is b'digits', not text"),
        ({"path": "switch"}, "path is 'switch', not one of auto, chain, overlay, ring"),
        ({"exact_plan": 1}, "exact_plan is 1, not true or false"),
        ({"elastic": 1}, "elastic is 1, not true or false"),
        ({"out": None}, "out is None, not a map"),
        ({"out": {}}, "out.mac is missing"),
        ({"out": {"mac": b"12345", "ip": b"1234", "qpn": 1, "psn": 1}}, "out.mac is b'12345', not 6 bytes"),
        (
            {"out": {"mac": b"123456", "ip": "1234", "qpn": 1, "psn": 1}},
            "out.ip is '1234', not 4 or 16 bytes",
        ),
        ({"out": {"mac": b"123456", "ip": b"1234", "qpn": 1 << 24, "psn": 1}}, "out.qpn is 16777216"),
    ],
)
def test_refusals_name_the_field(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_message(record_of(MEMBER) | changes)
    assert caught.value.layer == "control member"
    assert caught.value.reason.startswith(reason)


def test_refusals_inside_arrays() -> None:
    status = JobStatus(job="digits", op_index=3, waiting_for=(1, 2))
    record = record_of(status)
    with pytest.raises(DecodeError, match=r"waiting_for\[1\] is -2, not an integer"):
        decode_message(record | {"waiting_for": [1, -2]})
    with pytest.raises(DecodeError, match="waiting_for is 'all', not an array"):
        decode_message(record | {"waiting_for": "all"})
    operation = AllReduce(op_index=0, segment=0, offset=0, nbytes=4, dtype=0, op=0, shape=())
    with pytest.raises(DecodeError, match="shape has 65 items, at most 64"):
        decode_message(record_of(operation) | {"shape": [1] * 65})


def test_caller_misuse_names_the_field_too() -> None:
    with pytest.raises(LocalMisuse, match=r"control member\.into\.rkey is -1"):
        encode_message(replace(MEMBER, into=replace(INTO, rkey=-1)))
    with pytest.raises(LocalMisuse, match=r"control member\.out is IntoAddress\(.*, not OutAddress"):
        encode_message(replace(MEMBER, out=INTO))  # type: ignore[arg-type]
    with pytest.raises(LocalMisuse, match=r"control hello\.host is not valid Unicode"):
        encode_message(Hello(host="\ud800", mac=OUT.mac, ip=OUT.ip))


def test_enumerations_travel_as_numbers() -> None:
    message = AllReduce(
        id=1, op_index=2, segment=3, offset=0, nbytes=32, dtype=Dtype.I64, op=Op.MIN, shape=(2, 2)
    )
    record = record_of(message)
    assert (record["dtype"], record["op"], record["shape"]) == (5, 2, [2, 2])
    for name, value in (("dtype", 6), ("op", 3)):
        with pytest.raises(DecodeError, match=f"{name} is {value}, not an integer from 0 to {value - 1}"):
            decode_message(record | {name: value})
    with pytest.raises(DecodeError, match="path is 'magic', not one of switch, chain, overlay, ring, local"):
        decode_message(record_of(Done(op_index=1, path="switch", ns=5)) | {"path": "magic"})


def test_optional_fields() -> None:
    operation = AllReduce(op_index=0, segment=0, offset=0, nbytes=4, dtype=0, op=0, shape=(1,))
    assert "whole" not in record_of(operation)
    for whole in ((), (2, 1)):
        assert decode_message(record_of(replace(operation, whole=whole))) == replace(operation, whole=whole)
    assert "op_index" not in record_of(Error(code="timeout", message="late"))
    error = decode_message({"v": 1, "type": "error", "id": 3, "code": "timeout", "message": "late"})
    assert error == Error(id=3, code="timeout", message="late", of=0, op_index=None)


def test_a_rank_that_asks_for_nothing_has_the_switch_and_exact_plans() -> None:
    record = record_of(replace(MEMBER, path="ring", exact_plan=False))
    assert (record["path"], record["exact_plan"]) == ("ring", False)
    for name in ("path", "exact_plan"):
        del record[name]
    assert decode_message(record) == MEMBER
    assert (MEMBER.path, MEMBER.exact_plan) == ("auto", True)
    joining = Join(job="digits", rank=1, size=4, key="secret", pid=4711)
    assert (joining.path, joining.exact_plan) == ("auto", True)


def test_free_maps_travel_whole() -> None:
    body: Mapping[str, Any] = {"rings": [{"job": "digits", "ranks": 4}], "uptime_s": 1.5}
    assert decode_message(record_of(StatusReply(body=body))) == StatusReply(body=body)


def test_ranks_of_a_ring_are_groups_and_a_wrong_one_is_named_by_its_place() -> None:
    ring = Ring(
        job="digits",
        ring_id=1,
        epoch=0,
        ring_key=1,
        position=1,
        successor=INTO,
        predecessor=OUT,
        peers=("h1", "h0"),
        ranks=((0, 2), (1,)),
    )
    record = record_of(ring)
    assert record["ranks"] == [[0, 2], [1]]
    assert decode_message(record) == ring
    with pytest.raises(DecodeError, match=r"^control ring: ranks\[0\]\[1\] is -1, not an integer"):
        decode_message(record | {"ranks": [[0, -1], [1]]})
    with pytest.raises(DecodeError, match=r"^control ring: ranks\[1\] is 1, not an array"):
        decode_message(record | {"ranks": [[0, 2], 1]})


def test_secrets_stay_out_of_logs() -> None:
    join = Join(job="digits", rank=0, size=2, key="hunter2", pid=1)
    ring = Ring(
        job="digits",
        ring_id=1,
        epoch=0,
        ring_key=987654321,
        position=0,
        successor=INTO,
        predecessor=OUT,
        peers=(),
        ranks=(),
    )
    assert "hunter2" not in repr(join)
    assert "secret" not in repr(MEMBER)
    assert "987654321" not in repr(ring)


@pytest.mark.parametrize("kind", JOB_ERRORS.values(), ids=JOB_ERRORS)
def test_job_errors_there_and_back(kind: type[JobError]) -> None:
    error = decode_message(record_of(error_message(kind("rank 3 is gone"), of=8, op_index=2)))
    assert isinstance(error, Error)
    assert (error.id, error.of, error.op_index) == (8, 8, 2)
    failed = decode_message(record_of(failed_message("digits", kind("rank 3 is gone"))))
    assert isinstance(failed, Failed)
    for back in (job_error(error), job_error(failed)):
        assert type(back) is kind
        assert str(back) == "rank 3 is gone"


def test_an_error_code_of_a_newer_peer() -> None:
    back = job_error(Error(code="quota", message="too many jobs"))
    assert type(back) is JobError
    assert str(back) == "quota: too many jobs"


def test_a_reason_too_long_is_cut_not_lost() -> None:
    message = failed_message("digits", RankLost("\N{SNOWMAN}" * 5000 + "\ud800"))
    assert str(job_error(decode_failed(message))) == "\N{SNOWMAN}" * 2730
    assert type(job_error(error_message(TensorMismatch("")))) is TensorMismatch
    differs = JobStatus(job="digits", op_index=1, waiting_for=(), mismatch="a" * 8193)
    assert decode_message(record_of(differs)) == replace(differs, mismatch="a" * 8192)
    with pytest.raises(DecodeError, match="text of 8193 bytes"):
        decode_message(record_of(differs) | {"mismatch": "a" * 8193})
    with pytest.raises(LocalMisuse, match="plan is a text of 8193 bytes"):
        encode_message(Halt(job="digits", ring_id=1, path="chain", reason="", plan="a" * 8193))


def decode_failed(message: Failed) -> Failed:
    decoded = decode_message(record_of(message))
    assert isinstance(decoded, Failed)
    return decoded


def test_ids_default_to_none_given() -> None:
    assert Ok() == Ok(id=0)
    assert Ping(id=3) != Ping(id=4)


def test_what_is_not_looked_at_again_is_within_what_a_peer_takes() -> None:
    def depth(kind: object) -> int:
        if isinstance(kind, Many):
            assert kind.items_max <= ARRAY_ITEMS_MAX
            return 1 + depth(kind.item)
        if isinstance(kind, Record):
            return below(kind.cls)
        return 0

    def below(cls: type[Any]) -> int:
        return 1 + max((depth(kind) for kind, _ in field_kinds(cls).values()), default=0)

    bounded = [cls for cls in MESSAGES.values() if is_bounded(cls)]
    assert len(bounded) > len(MESSAGES) / 2
    assert max(map(below, bounded)) <= DEPTH_MAX
    free = [cls for cls in MESSAGES.values() if not is_bounded(cls)]
    assert free, "status reports are of anybody's own"
