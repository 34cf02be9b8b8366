"""Words and records of push and pull as messages with arrays: there and back, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inaproto.core.models.events import RootRecord, RootSnapshot
from inaproto.daemon.models.shard_records import (
    change_of,
    heard,
    record_of,
    snapshot_of,
    state_of,
)
from inaproto.daemon.settings.models_file import models_of
from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.control import encode_control
from inaproto.wire.control_messages import Message, decode_with_arrays, encode_with_arrays
from inaproto.wire.messages.array_frames import Frame, FrameDecoder, encode_frame
from inaproto.wire.messages.arrays import Numbers
from inaproto.wire.messages.clocks import FOREVER, Clocks, WorkerId
from inaproto.wire.messages.model_connections import ModelLeave
from inaproto.wire.messages.models import (
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
    PullRequest,
    Push,
    Reshaped,
    Weights,
    Word,
)
from tests.clusters.models import models_document

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
    Weights(CLOCKS, CLOCKS, ARRAY),
    Merged(CLOCKS),
    Mode(direct=True),
    Attach(7, (WorkerId(0),), CLOCKS, 3),
    Heartbeat(load=870),
    Reshaped(Epoch(3, 1, 2, 40)),
    HeartbeatAnswer(is_attached=False),
]


FRAMES = (Path(__file__).parents[1] / "data" / "push_pull_frames.txt").read_text()


def sent(message: Message) -> Frame:
    (frame,) = FrameDecoder(1 << 20).feed(b"".join(encode_with_arrays(message)))
    return frame


def framed(kind: str, payload: bytes = b"", **fields: Any) -> Message:
    """What is made of a frame that no honest neighbour sends."""
    message = [memoryview(payload)] if payload else []
    (frame,) = FrameDecoder(1 << 20).feed(b"".join(encode_frame(encode_control(kind, 0, **fields), message)))
    return decode_with_arrays(frame)


def numbered(values: list[Word]) -> list[str]:
    return [f"{number}-{type(value).__name__}" for number, value in enumerate(values)]


@pytest.mark.parametrize("word", WORDS, ids=numbered(WORDS))
def test_every_word_there_and_back(word: Word) -> None:
    assert heard(decode_with_arrays(sent(word)), SHARD) == word


def test_frames_are_the_same_bytes_as_ever() -> None:
    """What is on disks, and what neighbours of another version say, is read by this one."""
    made: dict[str, Message] = dict(zip(numbered(WORDS), WORDS, strict=True)) | {
        f"change-{name}-{kind}": change_of(RootRecord(CLOCKS, delta, epoch))
        for name, epoch in (("same", None), ("reshaped", Epoch(1, 0, 2, 30)))
        for kind, delta in (("clocks", None), ("weights", ARRAY))
    }
    for name, epoch in (("first", FIRST_EPOCH), ("reshaped", Epoch(4, 2, 1, 77))):
        made[f"snapshot-{name}"] = state_of(RootSnapshot(ARRAY, CLOCKS, epoch), SHARD)
    known = dict(line.split() for line in FRAMES.splitlines())
    assert {name: b"".join(encode_with_arrays(one)).hex() for name, one in made.items()} == known


def test_arrays_that_are_heard_are_not_writeable() -> None:
    word = heard(decode_with_arrays(sent(WORDS[2])), SHARD)
    assert isinstance(word, Push)
    assert word.delta is not None
    assert not word.delta.flags.writeable


def test_an_array_of_another_size_is_refused() -> None:
    with pytest.raises(DecodeError, match=r"16 bytes behind 'push_pull_push', not 12 of m/0"):
        heard(decode_with_arrays(sent(WORDS[2])), OTHER)
    with pytest.raises(DecodeError, match="0 bytes behind 'push_pull_push', not 16 of m/1"):
        heard(framed("push_pull_push", session=5, clock=4, before=[], after=[], arrays=1), SHARD)
    with pytest.raises(DecodeError, match="4 bytes behind 'push_pull_request', and no array"):
        framed("push_pull_request", b"1234", needed=1)
    with pytest.raises(DecodeError, match="4 bytes behind 'push_pull_push', and no array"):
        framed("push_pull_push", b"1234", session=5, clock=4, before=[], after=[], arrays=0)
    with pytest.raises(DecodeError, match="4 bytes behind '', and no array"):
        framed("teleport", b"1234")
    with pytest.raises(DecodeError, match="arrays is 2, not an integer from 0 to 1"):
        framed("push_pull_push", b"1234", session=5, clock=4, before=[], after=[], arrays=2)


def test_weights_have_weights() -> None:
    with pytest.raises(DecodeError, match="arrays is 0, not an integer from 1 to 1"):
        framed("push_pull_weights", included=[], root=[], arrays=0)


def test_what_processes_say_is_no_word() -> None:
    with pytest.raises(DecodeError, match="'model_leave', which no node of a tree says"):
        heard(ModelLeave(), SHARD)


@pytest.mark.parametrize("pairs", [((0, 1), (0, 2)), ((0,),), ((),)])
def test_clocks_are_pairs_and_each_worker_is_there_once(pairs: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(DecodeError, match="base has clocks of which one is"):
        framed("push_pull_attached", session=1, base=pairs, root=[])


@pytest.mark.parametrize("clocks", [Clocks({WorkerId(0): -1}), Clocks({WorkerId(0): 1 << 63})])
def test_clocks_that_no_neighbour_takes_are_not_sent(clocks: Clocks) -> None:
    with pytest.raises(LocalMisuse, match=r"push_pull_merged.root\[0\]\[1\] is .*, not an integer from 0"):
        encode_with_arrays(Merged(clocks))


@pytest.mark.parametrize(
    ("word", "says"),
    [(Merged([1]), r"\[1\], not clocks"), (Reshaped(4), "4, not an epoch")],  # type: ignore[arg-type]
)
def test_what_is_of_another_kind_is_not_sent(word: Word, says: str) -> None:
    with pytest.raises(LocalMisuse, match=says):
        encode_with_arrays(word)


@pytest.mark.parametrize("epoch", [None, Epoch(1, 0, 2, 30)], ids=["same", "reshaped"])
@pytest.mark.parametrize("delta", [None, ARRAY], ids=["clocks", "weights"])
def test_a_record_of_the_root_there_and_back(delta: Numbers | None, epoch: Epoch | None) -> None:
    record = RootRecord(CLOCKS, delta, epoch)
    assert record_of(sent(change_of(record)), SHARD) == record


def test_an_epoch_has_four_numbers() -> None:
    with pytest.raises(DecodeError, match="an epoch of 3 numbers"):
        framed("push_pull_reshaped", epoch=[1, 2, 3])


@pytest.mark.parametrize("epoch", [FIRST_EPOCH, Epoch(4, 2, 1, 77)], ids=["first", "reshaped"])
def test_a_snapshot_there_and_back_and_only_of_its_shard(epoch: Epoch) -> None:
    snapshot = RootSnapshot(ARRAY, CLOCKS, epoch)
    frame = sent(state_of(snapshot, SHARD))
    assert snapshot_of(frame, SHARD) == snapshot
    with pytest.raises(DecodeError, match="not 12 of m/0"):
        snapshot_of(frame, OTHER)
    with pytest.raises(DecodeError, match="'shard_state' in the log"):
        record_of(frame, SHARD)
    with pytest.raises(DecodeError, match="where a shard's state was to be"):
        snapshot_of(sent(change_of(RootRecord(CLOCKS, None))), SHARD)
