"""The proxy does to TCP what it says: an echo server behind it tells."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from support.proxy import FINE, Balancer, ChaosProxy, Network, drawn
from support.waiting import until

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """Says everything twice over, and notes how its connections ended, and how many are open."""

    def __init__(self) -> None:
        self.ends: asyncio.Queue[str] = asyncio.Queue()
        self.opened = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = "eof"
        self.opened += 1
        try:
            while received := await reader.read(1 << 16):
                writer.write(received)
        except ConnectionResetError:
            end = "reset"
        writer.close()
        self.opened -= 1
        await self.ends.put(end)


@asynccontextmanager
async def echo_behind(proxy_seed: int = 0) -> AsyncIterator[tuple[ChaosProxy, Echo]]:
    echo = Echo()
    async with (
        await asyncio.start_server(echo.serve, "127.0.0.1", 0) as server,
        ChaosProxy(server.sockets[0].getsockname()[1], proxy_seed) as proxy,
    ):
        yield proxy, echo


@asynccontextmanager
async def connected(proxy: ChaosProxy) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def echoed_s(streams: Streams, sent: bytes = b"hello") -> float:
    """Seconds until all of it is back."""
    reader, writer = streams
    began_s = time.perf_counter()
    writer.write(sent)
    assert await asyncio.wait_for(reader.readexactly(len(sent)), 10) == sent
    return time.perf_counter() - began_s


async def is_silent(streams: Streams, for_s: float = 0.15) -> bool:
    reader, writer = streams
    writer.write(b"anybody?")
    try:
        return await asyncio.wait_for(reader.read(1), for_s) is None
    except TimeoutError:
        return True


async def test_undisturbed_network_forwards_both_ways() -> None:
    async with echo_behind() as (proxy, echo), connected(proxy) as streams:
        assert await echoed_s(streams, bytes(200_000)) < 5
        streams[1].write_eof()
        assert await streams[0].read() == b""
        assert await echo.ends.get() == "eof"


async def test_delay_counts_each_way_and_jitter_on_top() -> None:
    async with echo_behind() as (proxy, _), connected(proxy) as streams:
        await proxy.become(Network(delay_s=0.05))
        assert 0.1 <= await echoed_s(streams) < 2
        await proxy.become(Network(jitter_s=0.02))
        assert max([await echoed_s(streams) for _ in range(5)]) > 0.01


async def test_rate_limits_a_connection() -> None:
    async with echo_behind() as (proxy, _), connected(proxy) as streams:
        await proxy.become(Network(rate_bytes_s=100_000))
        assert await echoed_s(streams, bytes(20_000)) >= 0.2


async def test_total_rate_limits_all_connections() -> None:
    async with echo_behind() as (proxy, _), connected(proxy) as one, connected(proxy) as other:
        await proxy.become(Network(total_bytes_s=100_000))
        assert max(await asyncio.gather(echoed_s(one, bytes(10_000)), echoed_s(other, bytes(10_000)))) >= 0.2


async def test_a_stall_holds_up_and_loses_nothing() -> None:
    async with echo_behind() as (proxy, _), connected(proxy) as streams:
        assert await echoed_s(streams) < 5
        await proxy.become(Network(stalled=True))
        assert await is_silent(streams)
        await proxy.become(FINE)
        assert await streams[0].readexactly(8) == b"anybody?"


async def test_black_hole_swallows_data() -> None:
    async with echo_behind() as (proxy, _), connected(proxy) as streams:
        assert await echoed_s(streams) < 5
        await proxy.become(Network(black_hole=True))
        assert await is_silent(streams)
        async with connected(proxy) as later:
            assert await is_silent(later)
        await proxy.become(FINE)
        assert await echoed_s(streams) < 5  # what was lost stays lost


async def test_a_reset_reaches_both_sides() -> None:
    async with echo_behind() as (proxy, echo), connected(proxy) as streams:
        await echoed_s(streams)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            await streams[0].read(1)
        assert await echo.ends.get() == "reset"


async def test_half_open_leaves_the_client_in_the_dark() -> None:
    async with echo_behind() as (proxy, echo), connected(proxy) as streams:
        await echoed_s(streams)
        proxy.half_open()
        assert await echo.ends.get() == "reset"
        assert await is_silent(streams)
        async with connected(proxy) as later:
            assert await echoed_s(later) < 5


async def test_answer_is_truncated() -> None:
    async with echo_behind() as (proxy, _), connected(proxy) as streams:
        await proxy.become(Network(truncate_bytes=3))
        streams[1].write(b"hello")
        assert await streams[0].read() == b"hel"


async def test_refused_is_refused_and_the_port_stays() -> None:
    async with echo_behind() as (proxy, _):
        await proxy.become(Network(refused=True))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.become(FINE)
        async with connected(proxy) as streams:
            assert await echoed_s(streams) < 5


async def test_absent_server_ends_the_connection() -> None:
    async with ChaosProxy(1) as proxy, connected(proxy) as streams:
        with pytest.raises(ConnectionResetError):
            await streams[0].read(1)


async def test_connections_that_stay_open_are_spread_whatever_short_ones_come_between() -> None:
    async with AsyncExitStack() as stack:
        echoes = [Echo() for _ in range(3)]
        servers = [
            await stack.enter_async_context(await asyncio.start_server(echo.serve, "127.0.0.1", 0)) for echo in echoes
        ]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        balancer = await stack.enter_async_context(Balancer([1, *ports]))  # the first one refuses
        for stay in (1, 2, 3):
            await echoed_s(await stack.enter_async_context(connected(balancer)))
            for _ in range(2):
                async with connected(balancer) as streams:
                    await echoed_s(streams)
                await until(lambda opened=stay: balancer.connections == opened == sum(echo.opened for echo in echoes))
        assert [echo.opened for echo in echoes] == [1, 1, 1]


async def test_script_is_played_in_order() -> None:
    async with echo_behind() as (proxy, _), connected(proxy) as streams:
        await echoed_s(streams)
        playing = asyncio.create_task(proxy.follow([(0.0, Network(stalled=True)), (0.1, FINE), (0.2, "reset")]))
        assert await echoed_s(streams) >= 0.05
        with pytest.raises(ConnectionResetError):
            await streams[0].read(1)
        await playing


def test_seed_determines_the_script() -> None:
    script = drawn(3, 300)
    assert script == drawn(3, 300) != drawn(4, 300)
    assert [at_s for at_s, _ in script] == sorted(at_s for at_s, _ in script)
    assert script[-1] == (300, FINE)
    assert {what for _, what in script if isinstance(what, str)} == {"reset", "half_open"}
    kinds = [what for _, what in script if isinstance(what, Network)]
    assert any(kind.stalled for kind in kinds) and any(kind.black_hole for kind in kinds)
    assert any(kind.refused for kind in kinds) and any(kind.truncate_bytes is not None for kind in kinds)
