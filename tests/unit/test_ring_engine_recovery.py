"""A ring engine that is halted: nothing of its ring goes on by it."""

from __future__ import annotations

from inaproto.core.host.engines.in_network import (
    Operation,
    OperationDone,
    ResultArrived,
    RingConfig,
    RingEngine,
    SendCompleted,
    Submit,
)
from inaproto.core.host.operations import PostMessage, TakeResult
from inaproto.units import Epoch, Instant, OpIndex, Rank, RingId
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, INA_HEADER_BYTES, Dtype, Op

NOW = Instant(5)


def engine_and_result() -> tuple[RingEngine, ResultArrived]:
    """An engine whose one message is out, and the result of it."""
    config = RingConfig(
        ring_id=RingId(7), epoch=Epoch(1), key=9, rank=Rank(0), ring_size=2, mtu=256, message_packets=1
    )
    engine = RingEngine(config)
    [post] = engine.step(Submit(Operation(OpIndex(0), Dtype.F32, Op.SUM, 8, 1)), NOW)
    assert isinstance(post, PostMessage)
    header = bytearray(post.header)
    header[FLAGS_OFFSET] |= FLAG_RESULT
    header[24:26] = (1).to_bytes(2, "big")
    return engine, ResultArrived(0, INA_HEADER_BYTES + 8, bytes(header))


def test_a_halted_ring_takes_and_sends_nothing() -> None:
    engine, result = engine_and_result()
    assert engine.step(result, NOW) == [TakeResult(0, OpIndex(0), 0, 8), OperationDone(OpIndex(0))]
    engine, result = engine_and_result()
    operations = engine.halt()
    assert engine.step(result, NOW) == []
    assert engine.step(SendCompleted(0), NOW) == []
    assert engine.step(Submit(Operation(OpIndex(1), Dtype.F32, Op.SUM, 8, 1)), NOW) == []
    assert (engine.progress, len(operations), operations.failure) == (0, 2, None)
