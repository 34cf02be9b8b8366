"""The last words of a rank, on a machine that is busy with other things."""

from __future__ import annotations

import trio
import trio.testing

from inaproto.launch.output import LAST_OUTPUT_S, until_ended


async def test_a_launcher_that_did_not_run_for_a_while_still_copies_what_a_rank_said(
    mock_clock: trio.testing.MockClock,
) -> None:
    """When it runs again the output is there, and so is the end of the time for which it is waited for."""
    outputs = [trio.Event(), trio.Event()]
    copied: list[bool] = []

    async def copy(output: trio.Event) -> None:
        await trio.sleep(LAST_OUTPUT_S / 2)
        output.set()

    async def wait() -> None:
        await until_ended(outputs)
        copied.append(all(output.is_set() for output in outputs))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for output in outputs:
            nursery.start_soon(copy, output)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(2 * LAST_OUTPUT_S)
        await trio.testing.wait_all_tasks_blocked()
    assert copied == [True]


async def test_output_that_somebody_holds_open_is_waited_for_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    began = trio.current_time()
    await until_ended([trio.Event()])
    assert 0.99 * LAST_OUTPUT_S < trio.current_time() - began < 1.01 * LAST_OUTPUT_S


async def test_time_in_which_output_waits_for_its_reader_does_not_count(
    autojump_clock: trio.testing.MockClock,
) -> None:
    output = trio.Event()
    began = trio.current_time()

    def is_writing() -> bool:
        return trio.current_time() - began < 100

    async with trio.open_nursery() as nursery:

        async def read() -> None:
            await trio.sleep(50)
            output.set()

        nursery.start_soon(read)
        await until_ended([output], is_writing, looks=1)
    assert 49.9 < trio.current_time() - began < 50.1
