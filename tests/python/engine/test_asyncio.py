"""Tickets, messages and notifications in asyncio."""

import asyncio
import contextlib

import numpy as np
import pytest
from engine_peers import options, pattern

import braid

BYTES = 64_000


@pytest.fixture
def engines():
    with (
        braid.Engine(**options("local", "a")) as a,
        braid.Engine(**options("local", "b")) as b,
    ):
        yield a, b


async def limited(awaitable):
    return await asyncio.wait_for(awaitable, 60)


def test_tickets_are_awaited_many_at_once(engines):
    a, b = engines
    memory, there = pattern(BYTES, 1), pattern(BYTES, 2)
    source, target = a.register(memory), b.register(there)

    async def run():
        arrived = b.expect(1, 64)
        tickets = [
            a.write(source, target.descriptor, 1000, src_offset=at, dst_offset=at, imm=1)
            for at in range(0, BYTES, 1000)
        ]
        await asyncio.gather(*(limited(ticket) for ticket in tickets))
        await limited(arrived)
        await limited(arrived)  # again: it has ended
        tickets[0].wait()

    asyncio.run(run())
    np.testing.assert_array_equal(there, memory)


def test_a_failed_ticket_raises_where_it_is_awaited(engines):
    a, b = engines
    source, target = a.register(pattern(BYTES, 1)), b.register(pattern(BYTES, 2))
    target.unregister()

    async def run():
        with pytest.raises(braid.InvalidArgument, match="unregistered"):
            await limited(a.write(source, target.descriptor))

    asyncio.run(run())


def test_a_cancelled_task_takes_its_expectation_back(engines):
    _, b = engines

    async def run():
        ticket = b.expect(9, 1)
        task = asyncio.ensure_future(ticket)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await limited(task)
        assert ticket.done()
        assert isinstance(ticket.error(), braid.Cancelled)

    asyncio.run(run())
    b.expect(9, 1)  # nobody expects it any more


def test_a_cancelled_task_ends_when_its_transfer_has(engines):
    a, b = engines
    source, target = a.register(pattern(32 << 20, 1)), b.register(pattern(32 << 20, 2))

    async def run():
        for pause in (0.0, 0.0005, 0.002, 0.01):
            ticket = a.write(source, target.descriptor, imm=3)
            task = asyncio.ensure_future(ticket)
            await asyncio.sleep(pause)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await limited(task)
            assert ticket.done()

    asyncio.run(run())


def test_messages_wake_those_who_wait(engines):
    a, b = engines

    async def run():
        waits = [asyncio.ensure_future(b.recv_async(60)) for _ in range(5)]
        note = asyncio.ensure_future(b.take_notification_async(60))
        await asyncio.sleep(0.05)
        for i in range(5):
            await limited(a.send(b.address, bytes([i])))
        await limited(a.notify(b.address, b"note"))
        got = await limited(asyncio.gather(*waits))
        assert sorted(m.data[0] for m in got) == list(range(5))
        assert (await limited(note)).data == b"note"

    asyncio.run(run())


def test_waits_that_end_early_lose_no_message(engines):
    a, b = engines

    async def run():
        got = []
        sends = [a.send(b.address, bytes([i])) for i in range(3)]
        for _ in range(200):
            task = asyncio.ensure_future(b.recv_async(60))
            await asyncio.sleep(0.0002)
            if not task.done():
                task.cancel()
            try:
                got.append((await task).data[0])
            except asyncio.CancelledError:
                continue
        for ticket in sends:
            await limited(ticket)
        assert got == [0, 1, 2]
        with pytest.raises(braid.Timeout, match=r"nothing has come to 'b' within 0.05 s"):
            await b.recv_async(0.05)

    asyncio.run(run())


def test_closing_ends_those_who_wait(engines):
    _, b = engines

    async def run():
        waits = [asyncio.ensure_future(b.recv_async()), asyncio.ensure_future(b.expect(1, 1))]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(b.close)
        for wait in waits:
            with pytest.raises(braid.Cancelled):
                await limited(wait)

    asyncio.run(run())
