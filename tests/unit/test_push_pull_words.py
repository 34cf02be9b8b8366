"""Words and records of push and pull as messages with arrays: there and back, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inaproto.core.models.clocks import FOREVER, Clocks, WorkerId
from inaproto.core.models.events import RootRecord, RootSnapshot
from inaproto.core.models.messages import (
    FIRST_EPOCH,
    Attach,
    Attached,
    Detach,
    Detached,
    Epoch,
    Flush,
    Heartbeat,
    HeartbeatAnswer,
    Merged,
    Mode,
    NodeId,
    Numbers,
    PullRequest,
    Push,
    Reshaped,
    Weights,
    Word,
)
from inaproto.daemon.models.word_records import Told, change_of, heard, record_of, snapshot_of, state_of, told
from inaproto.daemon.settings.models_file import models_of
from inaproto.errors import DecodeError
from inaproto.wire.array_frames import Frame, FrameDecoder, encode_frame
from inaproto.wire.control_messages import decode_message, encode_message
from inaproto.wire.push_pull_messages import ModelLeave, PushPullAttached, PushPullReshaped, PushPullWeights
from tests.daemon.models_cluster import models_document

MODELS = models_of(models_document(3, 2, dtype="float32", elements=7), Path("/run"))
SHARD = MODELS.models[0].shards[1]
OTHER = MODELS.models[0].shards[0]
CLOCKS = Clocks({WorkerId(0): 4, WorkerId(2): FOREVER})
ARRAY = np.arange(SHARD.elements, dtype=np.float32)

WORDS: list[Word] = [
    Attach(5, (WorkerId(0), WorkerId(2)), CLOCKS),
    Attach(6, ()),
    Push(5, 4, Clocks({WorkerId(0): 3}), Clocks({WorkerId(0): 4}), ARRAY),
    Push(5, 4, Clocks({WorkerId(0): 3}), Clocks({WorkerId(0): FOREVER}), None),
    PullRequest(9),
    Flush(),
    Heartbeat((NodeId(1),), (WorkerId(2),)),
    Heartbeat(),
    Detach(5),
    Attached(5, CLOCKS, Clocks(), direct=True),
    Detached(5, "attach again"),
    Weights(ARRAY, CLOCKS, CLOCKS),
    Merged(CLOCKS),
    Mode(direct=True),
    Attach(7, (WorkerId(0),), CLOCKS, 3),
    Heartbeat(load=870),
    Reshaped(Epoch(3, 1, 2, 40)),
    HeartbeatAnswer(is_attached=False),
]


def sent(what: Told) -> Frame:
    (frame,) = FrameDecoder(1 << 20).feed(b"".join(encode_frame(encode_message(what.message), what.payload)))
    return frame


def numbered(values: list[Word]) -> list[str]:
    return [f"{number}-{type(value).__name__}" for number, value in enumerate(values)]


@pytest.mark.parametrize("word", WORDS, ids=numbered(WORDS))
def test_every_word_there_and_back(word: Word) -> None:
    frame = sent(told(word))
    assert heard(decode_message(frame.record), frame.payload, SHARD) == word


def test_arrays_that_are_heard_are_not_writeable() -> None:
    frame = sent(told(WORDS[2]))
    word = heard(decode_message(frame.record), frame.payload, SHARD)
    assert isinstance(word, Push)
    assert word.delta is not None
    assert not word.delta.flags.writeable


def test_an_array_of_another_size_is_refused() -> None:
    frame = sent(told(WORDS[2]))
    with pytest.raises(DecodeError, match=r"16 bytes behind 'push_pull_push', not 1 times 12 of m/0"):
        heard(decode_message(frame.record), frame.payload, OTHER)
    frame = sent(told(PullRequest(1)))
    with pytest.raises(DecodeError, match="4 bytes behind 'push_pull_request', not 0 times"):
        heard(decode_message(frame.record), memoryview(b"1234"), SHARD)


def test_weights_have_weights() -> None:
    message = PushPullWeights(included=(), root=(), arrays=0)
    with pytest.raises(DecodeError, match="which no node of a tree says"):
        heard(message, memoryview(b""), SHARD)


def test_what_processes_say_is_no_word() -> None:
    with pytest.raises(DecodeError, match="'model_leave', which no node of a tree says"):
        heard(ModelLeave(), memoryview(b""), SHARD)


@pytest.mark.parametrize("pairs", [((0, 1), (0, 2)), ((0,),), ((),)])
def test_clocks_are_pairs_and_each_worker_is_there_once(pairs: tuple[tuple[int, ...], ...]) -> None:
    message = PushPullAttached(session=1, base=pairs, root=())
    with pytest.raises(DecodeError, match="clocks of which one is"):
        heard(message, memoryview(b""), SHARD)


@pytest.mark.parametrize("epoch", [None, Epoch(1, 0, 2, 30)], ids=["same", "reshaped"])
@pytest.mark.parametrize("delta", [None, ARRAY], ids=["clocks", "weights"])
def test_a_record_of_the_root_there_and_back(delta: Numbers | None, epoch: Epoch | None) -> None:
    record = RootRecord(CLOCKS, delta, epoch)
    assert record_of(sent(change_of(record)), SHARD) == record


def test_an_epoch_has_four_numbers() -> None:
    with pytest.raises(DecodeError, match="an epoch of 3 numbers"):
        heard(PushPullReshaped(epoch=(1, 2, 3)), memoryview(b""), SHARD)


@pytest.mark.parametrize("epoch", [FIRST_EPOCH, Epoch(4, 2, 1, 77)], ids=["first", "reshaped"])
def test_a_snapshot_there_and_back_and_only_of_its_shard(epoch: Epoch) -> None:
    snapshot = RootSnapshot(ARRAY, CLOCKS, epoch)
    frame = sent(state_of(snapshot, SHARD))
    assert snapshot_of(frame, SHARD) == snapshot
    with pytest.raises(DecodeError, match="not 1 times 12 of m/0"):
        snapshot_of(frame, OTHER)
    with pytest.raises(DecodeError, match="'shard_state' in the log"):
        record_of(frame, SHARD)
    with pytest.raises(DecodeError, match="where a shard's state was to be"):
        snapshot_of(sent(change_of(RootRecord(CLOCKS, None))), SHARD)
