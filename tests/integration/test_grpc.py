"""gRPC on both tiers: who may call, what is too much, and what a failure looks like."""

import asyncio
import socket
import ssl
import time
from codecs import BOM_UTF8
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from unittest.mock import patch

import grpc
import pytest
from cryptography import x509
from support.agent import edge_settings, serving_agent
from support.broker import free_port
from support.gateway import GatedExecutor, gateway_of, gateway_settings
from support.grpc_calls import Call, calling, digits_message, refusal, sending, streaming
from support.identities import Device
from support.keys import create_key, revoke_key
from support.logs import captured_lines
from support.memory import growth_below
from support.tls_site import tls_site
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import CapacityError, ConfigError, StoreUnavailableError
from firstline_core.protocol.grpc.schema import message
from firstline_core.protocol.http import BodyBudget
from firstline_core.protocol.http_server import ServerLimits
from firstline_edge.api import server as edge_server
from firstline_edge.api.access import access_of
from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.identity import ca
from firstline_gateway.identity.credentials import ApiKey
from firstline_gateway.settings.load import load
from firstline_gateway.settings.settings import Settings


@asynccontextmanager
async def listening(gateway: Gateway) -> AsyncIterator[int]:
    """Starts a gateway with gRPC alone; yields the port."""
    found = gateway.grpc_server()
    await gateway.start()
    await found.start()
    try:
        yield found.port
    finally:
        await found.stop(1)
        await gateway.close()
    assert gateway.overload.in_progress == 0


def settings_of(folder: Path, **overrides: object) -> Settings:
    return gateway_settings(folder, **({"grpc__enabled": True, "grpc__port": 0, "auth__refresh_s": 0.1} | overrides))


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Call]:
    """Calls of an application to a gateway that serves the digits."""
    settings = settings_of(tmp_path, api__body_limit_bytes=100_000)
    key = create_key(settings.store, "shop", "application")
    async with listening(open_gateway(settings)) as port, calling(port, key=key) as found:
        yield found


async def test_all_methods_but_health_need_a_key(call: Call) -> None:
    nobody = {"metadata": None}
    assert (await call("ServerLive", **nobody)).live
    assert (await call("ServerReady", **nobody)).ready
    for method in (
        "ServerMetadata",
        "ModelReady",
        "ModelMetadata",
        "ModelConfig",
        "ModelStatistics",
        "RepositoryIndex",
    ):
        assert (await refusal(call(method, **nobody)))[0] == "UNAUTHENTICATED"
    status, sentence, trailers = await refusal(call("ModelInfer", digits_message(), **nobody))
    assert (status, trailers["firstline-code"]) == ("UNAUTHENTICATED", "unauthorized")
    assert sentence.startswith("This gateway needs an API key")
    wrong = (("authorization", "Bearer nothing"),)
    assert (await refusal(call("ModelInfer", digits_message(), metadata=wrong)))[0] == "UNAUTHENTICATED"


async def test_no_call_acts_for_a_person(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    key = create_key(settings.store, "console", "operator")
    sent = (("authorization", f"Bearer {key}"), ("firstline-person", '{"name": "anna", "role": "approver"}'))
    async with listening(open_gateway(settings)) as port, calling(port) as call:
        for method, body in (("ModelInfer", digits_message()), ("RepositoryIndex", b"")):
            status, sentence, _ = await refusal(call(method, body, metadata=sent))
            assert status == "PERMISSION_DENIED" and sentence.endswith("leave out the header Firstline-Person.")


@pytest.mark.parametrize("method", ["ServerLive", "ServerReady"])
async def test_messages_of_strangers_are_not_read(method: str, tmp_path: Path) -> None:
    async with listening(open_gateway(settings_of(tmp_path))) as port, sending(port, method) as call:
        assert await call  # although no message has ended


@pytest.mark.parametrize("begun", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"], ids=["silent", "idle"])
async def test_connections_without_a_call_are_closed(
    begun: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ServerLimits(idle_s=1.0, handshake_s=1.0)
    monkeypatch.setattr("firstline_core.protocol.grpc.server._LIMITS", limits)
    async with listening(open_gateway(settings_of(tmp_path))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(begun)
            async with asyncio.timeout(10):
                await reader.read()  # up to its end


async def test_answers_and_refusals_are_logged_with_their_trace(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    key = create_key(settings.store, "shop", "application")
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    traced = ("traceparent", f"00-{trace_id}-b7ad6b7169203331-01")
    with captured_lines() as lines:
        async with listening(open_gateway(settings)) as port, calling(port) as found:
            stranger = found("ModelInfer", digits_message(), metadata=(traced,))
            assert (await refusal(stranger))[0] == "UNAUTHENTICATED"
            metadata = (traced, ("authorization", f"Bearer {key}"))
            assert (await refusal(found("ModelInfer", b"no message", metadata=metadata)))[0] == "INVALID_ARGUMENT"
            assert (await found("ModelStreamInfer", b"no message", metadata=metadata)).error_message
            for parent in (traced, ("traceparent", "00-none")):
                await found("ModelInfer", digits_message(), metadata=(metadata[1], parent))
    assert [line.get("trace_id") for line in lines if line["event"] == "answered"] == [trace_id, None]
    refused = [line for line in lines if line["event"] == "refused"]
    assert [line.get("trace_id") for line in refused] == [trace_id] * 3


async def test_an_inference_is_answered_logged_and_counted(call: Call) -> None:
    with captured_lines() as lines:
        found = await call("ModelInfer", digits_message(rows=3, id="mine"))
    assert (found.id, found.model_version, list(found.outputs[0].shape)) == ("mine", "1", [3, 10])
    (line,) = (line for line in lines if line["event"] == "answered")
    assert (line["transport"], line["principal"], line["rows"]) == ("grpc", "application:shop", 3)
    (model,) = (await call("ModelStatistics", message("ModelStatisticsRequest")(name="digits"))).model_stats
    assert (model.inference_count, model.execution_count, model.inference_stats.success.count) == (3, 1, 1)
    config = (await call("ModelConfig", message("ModelConfigRequest")(name="digits"))).config
    assert (config.backend, config.dynamic_batching.priority_levels) == ("onnxruntime", 3)
    assert [model.name for model in (await call("RepositoryIndex")).models] == ["digits"]


async def test_errors_have_the_sentence_and_code_of_rest(call: Call) -> None:
    status, sentence, trailers = await refusal(call("ModelMetadata", message("ModelMetadataRequest")(name="nobody")))
    assert (status, trailers["firstline-code"]) == ("NOT_FOUND", "unknown_model")
    assert sentence == "There is no model 'nobody' on this gateway; it serves: digits."
    for sent in (b"\xff\xff", b""):
        status, _, trailers = await refusal(call("ModelInfer", sent))
        assert (status, trailers["firstline-code"]) == ("INVALID_ARGUMENT", "invalid_tensor")
    assert (await refusal(call("ModelMetadata", b"\xff")))[0] == "INVALID_ARGUMENT"
    assert (await refusal(call("ModelMetadata", b"\x0a\xf0\xa2\x04" + b"a" * 70_000)))[0] == "INVALID_ARGUMENT"


async def test_callers_do_not_see_the_databases_address(tmp_path: Path) -> None:
    gateway = open_gateway(settings_of(tmp_path, auth__mode="off"))
    failure = StoreUnavailableError("The store postgresql://db refuses.", public="The gateway's store refuses.")
    with captured_lines() as lines, patch.object(gateway.plane, "infer", side_effect=failure):
        async with listening(gateway) as port, calling(port) as call:
            assert (await refusal(call("ModelInfer", digits_message())))[1] == failure.public
            assert (await call("ModelStreamInfer", digits_message())).error_message == failure.public
    assert [line["error"] for line in lines if line["event"] == "refused"] == [failure.message] * 2


@pytest.mark.parametrize("answered", [0, 1], ids=["unused", "used"])
async def test_an_open_stream_ends_when_its_key_is_revoked(
    answered: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firstline_core.protocol.grpc.service._FRESH_S", 0.0)
    settings = settings_of(tmp_path)
    key, gateway = create_key(settings.store, "shop", "application"), open_gateway(settings)
    gatekeeper, authenticated = gateway.identity.gatekeeper, asyncio.Event()
    authenticate = gatekeeper.authenticate_key

    async def watched(text: str, *, counts: bool = True) -> ApiKey:
        found = await authenticate(text, counts=counts)
        authenticated.set()
        return found

    monkeypatch.setattr(gatekeeper, "authenticate_key", watched)
    async with listening(gateway) as port, streaming(port, key) as stream:
        await stream.wait_for_connection()
        await authenticated.wait()
        for _ in range(answered):
            await stream.write(digits_message())
            assert (await stream.read()).infer_response.model_name == "digits"
        revoke_key(settings.store, "shop")
        await gatekeeper.refreshed()
        await stream.write(digits_message())
        assert (await refusal(stream.read()))[0] == "UNAUTHENTICATED"


@pytest.mark.parametrize("fresh_s", [0.0, 20.0])
async def test_each_request_of_a_stream_counts(fresh_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstline_core.protocol.grpc.service._FRESH_S", fresh_s)
    settings = settings_of(tmp_path)
    key = create_key(settings.store, "shop", "application", requests_per_s=2.0)
    gateway = open_gateway(settings)
    gateway.identity.gatekeeper.clock = SimulatedClock()
    async with listening(gateway) as port, streaming(port, key) as stream:
        for _ in range(2):
            await stream.write(digits_message())
            assert (await stream.read()).infer_response.model_name == "digits"
        for _ in range(2):
            await stream.write(digits_message())
            assert (await stream.read()).infer_response.parameters["code"].string_param == "rate_limited"


async def test_large_messages_are_refused_also_when_compressed(call: Call) -> None:
    large = digits_message()
    large.raw_input_contents[0] = bytes(1_000_000)
    assert (await refusal(call("ModelInfer", large)))[0] == "RESOURCE_EXHAUSTED"
    bomb = call("ModelInfer", large, compression=grpc.Compression.Gzip)
    assert (await refusal(bomb))[0] == "RESOURCE_EXHAUSTED"
    large.raw_input_contents[0] = bytes(100_000)
    status, _, trailers = await refusal(call("ModelInfer", large))
    assert (status, trailers["firstline-code"]) == ("RESOURCE_EXHAUSTED", "payload_too_large")
    assert (await call("ModelInfer", digits_message())).model_name == "digits"


async def test_streams_of_one_caller_leave_room_for_others(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, grpc__calls_limit=4)
    keys = [create_key(settings.store, name, "application") for name in ("greedy", "shop")]
    async with listening(open_gateway(settings)) as port, AsyncExitStack() as opened:
        streams = [await opened.enter_async_context(streaming(port, keys[0])) for _ in range(2)]
        for _ in range(2):  # each message is authenticated, and the call counts once
            for stream in streams:
                await stream.write(digits_message())
                assert (await stream.read()).infer_response.model_name == "digits"
        greedy, shop = [await opened.enter_async_context(calling(port, key=key)) for key in keys]
        status, sentence, _ = await refusal(greedy("ModelInfer", digits_message()))
        assert (status, "half of grpc.calls_limit" in sentence) == ("UNAVAILABLE", True)
        assert (await shop("ModelInfer", digits_message())).model_name == "digits"
        await streams[0].done_writing()
        assert await streams[0].read() is grpc.aio.EOF

        async def is_answered() -> bool:
            with suppress(grpc.aio.AioRpcError):
                return (await greedy("ModelInfer", digits_message())).model_name == "digits"
            return False

        await until(is_answered)


async def test_the_message_of_a_refused_call_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    gateway, too_many = gateway_of(settings_of(tmp_path, auth__mode="off"), GatedExecutor()), digits_message(20_000)
    async with listening(gateway) as port, calling(port) as call:
        with growth_below(1_500_000):
            for _ in range(5):
                assert "at most 4096" in (await refusal(call("ModelInfer", too_many)))[1]


async def test_the_shorter_of_both_deadlines_holds(tmp_path: Path) -> None:
    executor = GatedExecutor()
    found = settings_of(tmp_path, auth__mode="off")
    gateway = gateway_of(found, executor)
    async with listening(gateway) as port, calling(port) as call:
        infer_request = digits_message()
        infer_request.parameters["timeout"].int64_param = 50_000
        status, _, trailers = await refusal(call("ModelInfer", infer_request))
        assert (status, trailers["firstline-code"]) == ("DEADLINE_EXCEEDED", "deadline_exceeded")
        started_s = time.monotonic()
        assert (await refusal(call("ModelInfer", digits_message(), timeout=0.2)))[0] == "DEADLINE_EXCEEDED"
        assert time.monotonic() - started_s < 10
        left = call("ModelInfer", digits_message())
        await until(lambda: executor.running)
        left.cancel()
        executor.release()


async def test_draining_gateway_refuses_with_pushback(tmp_path: Path) -> None:
    gateway = open_gateway(settings_of(tmp_path, auth__mode="off"))
    async with listening(gateway) as port, calling(port) as call:
        assert await gateway.drain(1)
        assert not (await call("ServerReady")).ready
        status, _, trailers = await refusal(call("ModelInfer", digits_message()))
        assert (status, trailers["firstline-code"]) == ("UNAVAILABLE", "not_ready")
        assert trailers["grpc-retry-pushback-ms"] == "1000"


async def test_caller_that_ignores_refusals_is_refused_unread(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, execution__queue_requests=1, execution__max_batch_rows=1)
    executor = GatedExecutor()
    gateway = gateway_of(settings, executor)
    keys = [create_key(settings.store, name, "application") for name in ("flood", "shop")]
    async with listening(gateway) as port, calling(port, key=keys[0]) as flood, calling(port, key=keys[1]) as shop:
        # Its refusals that are read may be held for a minute: the test has no hurry.
        gateway.overload._queue_wait_s = lambda: 1e9
        with patch.object(gateway.overload, "_LONGEST_HOLD_S", 60.0):
            first = asyncio.ensure_future(flood("ModelInfer", digits_message()))
            await until(lambda: executor.held)
            waiting = [asyncio.ensure_future(flood("ModelInfer", digits_message())) for _ in range(2)]
            read, unread = 0, ""
            while not unread and read < 200:
                _, sentence, trailers = await refusal(flood("ModelInfer", digits_message()))
                read += "was not read" not in sentence
                unread = sentence if "was not read" in sentence else ""
            assert read > 1
            assert (trailers["firstline-code"], trailers["grpc-retry-pushback-ms"]) == ("queue_full", "1000")
            # Whatever it sends: bytes that are not a message are ignored.
            status, sentence, _ = await refusal(flood("ModelInfer", b"\xff" * 50_000))
            assert (status, sentence) == ("UNAVAILABLE", unread)
            # It refuses no other caller.
            status, sentence, _ = await refusal(shop("ModelInfer", b"\xff" * 50_000))
            assert (status, "was not read" in sentence) == ("INVALID_ARGUMENT", False)
        while not all(each.done() for each in (first, *waiting)):
            if executor.held:
                executor.release()
            await asyncio.sleep(0.001)
        await asyncio.gather(first, *waiting, return_exceptions=True)


def shown_by(device: Device | None, believed_pem: str) -> grpc.ChannelCredentials:
    if device is None:
        return grpc.ssl_channel_credentials(believed_pem.encode())
    key, certificate = (device.folder / "device.key").read_bytes(), (device.folder / "device.pem").read_bytes()
    return grpc.ssl_channel_credentials(believed_pem.encode(), key, certificate)


async def test_tls_with_keys_and_files_that_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    other = ca.create_authority(ca.new_key(), time.time())
    certificate, key = ca.issue_server(other, ["127.0.0.1"], time.time())
    texts = {"certificate": ca.pem_of(certificate).encode(), "key": ca.key_pem(key), "ca": other.pem.encode()}
    files = {f"tls__{name}_file": str(tmp_path / f"{name}.pem") for name in texts}
    for name, text in texts.items():
        (tmp_path / f"{name}.pem").write_bytes(BOM_UTF8 + text)
    async with tls_site(tmp_path, grpc__enabled=True, grpc__port=0, **files) as at:
        async with at.trusting(other.pem) as client:
            assert (await client.get("/v2/health/live")).status_code == 200
        found = at.gateway.grpc_server()
        await found.start()
        token = create_key(at.gateway.settings.store, "shop", "application")
        async with calling(found.port, credentials=shown_by(None, other.pem), key=token) as call:
            assert (await call("ModelInfer", digits_message())).model_name == "digits"
        async with calling(found.port, key=token) as call:
            assert (await refusal(call("ServerLive", timeout=2)))[0] in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
        await found.stop(1)


async def test_a_changed_certificate_that_cannot_be_read_is_read_again(tmp_path: Path) -> None:
    other = ca.create_authority(ca.new_key(), time.time())
    pem, away = tmp_path / "server.pem", tmp_path / "away.pem"

    def issue() -> int:
        certificate, key = ca.issue_server(other, ["127.0.0.1"], time.time())
        pem.write_bytes(ca.key_pem(key) + ca.pem_of(certificate).encode())
        return certificate.serial_number

    def shown_at(port: int) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as encrypted:
            return x509.load_der_x509_certificate(encrypted.getpeercert(binary_form=True) or b"").serial_number

    first = issue()
    files = {"tls__certificate_file": str(pem), "tls__key_file": str(pem)}
    async with tls_site(tmp_path, grpc__enabled=True, grpc__port=0, **files) as at:
        found, tls = at.gateway.grpc_server(), at.gateway.identity.tls
        await found.start()
        second = issue()
        assert await tls.refresh()
        pem.rename(away)
        assert await asyncio.to_thread(shown_at, found.port) == first
        away.rename(pem)
        assert await asyncio.to_thread(shown_at, found.port) == second
        await found.stop(1)


async def test_tls_with_certificates_of_devices(tmp_path: Path) -> None:
    extra = {"grpc__enabled": True, "grpc__port": 0, "grpc__client_certificates": True}
    async with tls_site(tmp_path, **extra) as at:
        found = at.gateway.grpc_server()
        await found.start()
        device = await at.enrolled("press-7")
        async with calling(found.port, credentials=shown_by(device, at.authority.pem)) as call:
            infer_request = digits_message()
            infer_request.parameters["request_id"].string_param = "01890a5d-ac96-774b-bcce-b302099a8057"
            answered = await call("ModelInfer", infer_request)
            # A device keeps its own ids, an application does not.
            assert answered.parameters["request_id"].string_param == "01890a5d-ac96-774b-bcce-b302099a8057"
            assert (await at.operator.post("/firstline/v1/devices/press-7/revoke")).status_code == 200
            status, sentence, _ = await refusal(call("ModelInfer", digits_message()))
            assert (status, "was revoked" in sentence) == ("UNAUTHENTICATED", True)
        async with calling(found.port, credentials=shown_by(None, at.authority.pem)) as call:
            assert (await refusal(call("ServerLive", timeout=2)))[0] in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
        await found.stop(1)


async def test_used_port_and_missing_packages_are_errors(tmp_path: Path) -> None:
    gateway = open_gateway(settings_of(tmp_path, auth__mode="off"))
    async with listening(gateway) as port:
        with patch.object(gateway, "settings", settings_of(tmp_path, grpc__port=port)):
            with pytest.raises(CapacityError, match=f"Cannot listen for gRPC on 127.0.0.1:{port}"):
                gateway.grpc_server()
            with (
                patch.dict("sys.modules", {"firstline_gateway.api.grpc": None}),
                pytest.raises(ConfigError, match=r"install firstline\[gateway,grpc\]"),
            ):
                gateway.grpc_server()
    with pytest.raises(ConfigError, match=r"grpc\.client_certificates is set without TLS"):
        load(None, overrides={"grpc.client_certificates": True})


async def test_an_agent_answers_with_its_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("anna:" + "k" * 40 + "\n")
    tokens.chmod(0o600)
    port = free_port()
    settings = edge_settings(tmp_path / "state", grpc__enabled=True, grpc__port=port, api__token_file=str(tokens))
    async with (
        serving_agent(settings) as (agent, _),
        edge_server.serving_grpc(agent.data_plane, access_of(settings.api), BodyBudget(1 << 20)),
        calling(port, key="k" * 40) as call,
    ):
        assert (await call("ServerMetadata")).name == "firstline-edge"
        infer_request = digits_message()
        infer_request.parameters["route"].string_param = "edge"
        assert (await call("ModelInfer", infer_request)).parameters["tier"].string_param == "edge"
        assert [model.state for model in (await call("RepositoryIndex")).models] == ["READY"]
        (model,) = (await call("ModelStatistics")).model_stats
        assert (model.inference_count, model.inference_stats.cache_miss.count) == (1, 1)
        infer_request.parameters["privacy"].string_param = "local_only"
        await call("ModelInfer", infer_request)
        (model,) = (await call("ModelStatistics")).model_stats
        assert model.inference_stats.success.count == 1
        assert (await refusal(call("ServerMetadata", metadata=None)))[0] == "UNAUTHENTICATED"
        infer_request.raw_input_contents[0] = bytes(2 << 20)
        status, _, trailers = await refusal(call("ModelInfer", infer_request))
        assert (status, trailers["firstline-code"]) == ("UNAVAILABLE", "queue_full")
