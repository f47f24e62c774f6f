"""Keys, files, credentials and renewal of a device, without a gateway."""

import asyncio
import errno
import fcntl
import os
import random
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import CapacityError, ConfigError, LinkDownError, ProtocolError
from firstline_core.protocol.enrolment import BrokerAddress, EnrolAnswer, public_key_hash
from firstline_core.storage.files import write_whole
from firstline_core.units import DAY_S
from firstline_edge.identity import enrolment
from firstline_edge.identity.credentials import Credentials, DeviceIdentity
from firstline_edge.identity.files import IdentityFiles
from firstline_edge.identity.renewal import CredentialRenewal
from firstline_edge.settings.identity import IdentityDocument, readable_identity
from firstline_edge.settings.load import load
from firstline_gateway.identity import ca

NOW_S = time.time()
GATEWAY = "https://gateway.example.com"


class Authority:
    """Issues certificates like a gateway."""

    def __init__(self) -> None:
        self.own = ca.create_authority(ca.new_key(), NOW_S)
        self.hash = bytes.fromhex(public_key_hash(self.own.pem).hex())

    def answer(self, csr: str, device: str = "press-7", *, days: float = 90, now_s: float = NOW_S) -> EnrolAnswer:
        cert = ca.issue_device(self.own, device, ca.requested_key(csr), now_s, days)
        return EnrolAnswer(device, ca.pem_of(cert), self.own.pem, BrokerAddress("broker", 8883, "firstline/v1"), now_s)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def joined(folder: Path, authority: Authority, *, days: float = 90) -> tuple[IdentityFiles, IdentityDocument]:
    files, key = IdentityFiles(folder), enrolment.new_key()
    answer = authority.answer(enrolment.signing_request(key), days=days)
    identity = enrolment.identity_from(answer, key, authority.hash, gateway=GATEWAY, proxy="")
    files.save(identity, answer.ca, key, answer.certificate)
    return files, identity


def credentials_at(wall_s: float, folder: Path, authority: Authority) -> Credentials:
    """Of a device that has joined, by its clock."""
    files, identity = joined(folder, authority)
    return Credentials(files, identity, files.revision(), SimulatedClock(wall_start_s=wall_s))


async def no_links() -> None:
    """Adopts nothing."""


class TestJoinAgain:
    """`join --force` while the agent runs."""

    def renewal(
        self, files: IdentityFiles, identity: IdentityDocument
    ) -> tuple[CredentialRenewal, list[IdentityDocument]]:
        adopted: list[IdentityDocument] = []
        clock = SimulatedClock(wall_start_s=NOW_S)
        credentials = Credentials(files, identity, files.revision(), clock)

        async def apply_to_links() -> None:
            adopted.append(credentials.identity)

        return CredentialRenewal(credentials, apply_to_links, clock, random.Random(1)), adopted

    @pytest.fixture
    def gateway(self, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
        """A gateway that renews."""

        async def answer(_url: str, csr: str, _context: ssl.SSLContext, *, proxy: str = "") -> EnrolAnswer:
            return authority.answer(csr, days=30)

        monkeypatch.setattr(enrolment, "renew", answer)

    @pytest.mark.usefixtures("gateway")
    async def test_a_join_right_before_a_renewal_is_not_overwritten(
        self, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        renewal, adopted = self.renewal(*joined(tmp_path, authority))
        save, again = IdentityFiles.save, []

        def join_and_save(files: IdentityFiles, *what: Any) -> Any:
            monkeypatch.setattr(IdentityFiles, "save", save)
            again.append(joined(tmp_path, authority)[1])
            return save(files, *what)

        monkeypatch.setattr(IdentityFiles, "save", join_and_save)
        with pytest.raises(ConfigError, match="joined again since"):
            await renewal.renew()
        assert adopted == []
        assert again == [readable_identity(tmp_path)]

    @pytest.mark.usefixtures("gateway")
    async def test_two_joins_while_the_agent_starts_are_not_overwritten(
        self, tmp_path: Path, authority: Authority
    ) -> None:
        unjoined = IdentityFiles(tmp_path).revision()
        files, identity = joined(tmp_path, authority)
        credentials = Credentials(files, identity, unjoined, SimulatedClock(wall_start_s=NOW_S))
        again = joined(tmp_path, authority)[1]
        with pytest.raises(ConfigError, match="joined again since"):
            await CredentialRenewal(credentials, no_links, SimulatedClock(), random.Random(1)).renew()
        assert readable_identity(tmp_path) == again

    async def test_the_running_agent_reports_it(self, tmp_path: Path, authority: Authority) -> None:
        joined(tmp_path, authority)
        settings = load(None, environ={}, overrides={"agent.state_dir": str(tmp_path)})
        running = DeviceIdentity(settings, SimulatedClock(wall_start_s=NOW_S))
        assert running.problems == []
        joined(tmp_path, authority)
        (problem,) = running.problems
        assert "has joined again" in problem and "restart the agent" in problem
        assert DeviceIdentity(settings, SimulatedClock(wall_start_s=NOW_S)).problems == []
        (tmp_path / "identity" / "identity.json").unlink()
        assert running.problems == []


def test_only_one_process_writes_the_files(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, alone = IdentityFiles(tmp_path), []

    def write_and_look(path: Path, content: bytes, **options: Any) -> os.stat_result:
        other = os.open(files.folder, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(other)
        alone.append(path.name)
        return write_whole(path, content, **options)

    monkeypatch.setattr("firstline_edge.identity.files.write_whole", write_and_look)
    for _ in range(2):
        joined(tmp_path, authority)
    assert alone == 2 * ["ca.pem", "device.pem", "identity.json"]


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for another user")


@pytest.fixture
def agents_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of an agent that runs as another user than root, who writes there."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(state, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)  # it takes the path of root, and may give files to itself
    return state


def test_files_of_root_belong_to_the_agents_user(agents_state: Path, authority: Authority) -> None:
    for _ in range(2):
        files, identity = joined(agents_state, authority)
        written = [files.folder, *files.folder.iterdir()]
        assert sorted(path.name for path in written) == ["ca.pem", "device.pem", "identity", "identity.json"]
        owner = agents_state.stat().st_uid
        assert {(path.stat().st_uid, path.stat().st_mode & 0o77) for path in written} == {(owner, 0)}
        assert files.read() == identity


@as_root
def test_root_of_a_container_that_knows_no_such_user_keeps_the_files(
    agents_state: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_others(_file: int, user: int, _group: int) -> None:
        if user != 0:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fchown", refuse_others)
    files, identity = joined(agents_state, authority)
    assert (files.read(), files.folder.stat().st_uid) == (identity, 0)


def test_root_follows_no_link_of_the_agents_user(agents_state: Path, tmp_path: Path, authority: Authority) -> None:
    roots = tmp_path / "roots"
    roots.mkdir(mode=0o755)
    (agents_state / "identity").symlink_to(roots)
    with pytest.raises(CapacityError, match="cannot be written"):
        joined(agents_state, authority)
    with pytest.raises(CapacityError, match="cannot be written"):
        IdentityFiles(agents_state).save_joining_key("key")
    assert (list(roots.iterdir()), roots.stat().st_mode & 0o777, roots.stat().st_uid) == ([], 0o755, os.getuid())


def test_root_uses_no_key_behind_a_link(agents_state: Path, tmp_path: Path) -> None:
    files = IdentityFiles(agents_state)
    files.save_joining_key("a key")
    assert files.joining_key() == "a key"
    (tmp_path / "key").write_text("of root")
    (files.folder / "joining.pem").unlink()
    (files.folder / "joining.pem").symlink_to(tmp_path / "key")
    assert files.joining_key() is None


def test_a_stored_identity_is_read(tmp_path: Path, authority: Authority) -> None:
    files, identity = joined(tmp_path, authority)
    assert files.read() == readable_identity(tmp_path) == identity
    assert identity.not_after_s == pytest.approx(NOW_S + 90 * DAY_S, abs=2)
    assert identity.authority == authority.hash.hex()


def test_every_flipped_bit_is_detected(tmp_path: Path, authority: Authority) -> None:
    files, _ = joined(tmp_path, authority)
    path = files.folder / "identity.json"
    whole = path.read_bytes()
    for position in range(0, len(whole) * 8, 7):
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        if bytes(flipped).rstrip(b"\n") != whole.rstrip(b"\n"):
            with pytest.raises(ConfigError, match="is damaged"):
                files.read()


def test_no_flipped_bit_of_a_certificate_or_key_stops_the_agent(tmp_path: Path, authority: Authority) -> None:
    files, identity = joined(tmp_path, authority)
    rng = random.Random(5)
    for path in (files.authorities, files.device):
        whole, refused = path.read_bytes(), 0
        for _ in range(60):
            flipped = bytearray(whole)
            flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
            path.write_bytes(flipped)
            problem = Credentials(files, identity, files.revision(), SimulatedClock(wall_start_s=NOW_S)).problem
            assert "join again" in problem or not problem
            refused += bool(problem)
        assert refused
        path.write_bytes(whole)


def test_the_agent_starts_without_loading_cryptography(tmp_path: Path, authority: Authority) -> None:
    joined(tmp_path, authority)
    script = (
        "import sys; from firstline_edge.settings.load import load; from firstline_core.clock import SYSTEM_CLOCK; "
        "from firstline_edge.identity.credentials import DeviceIdentity; "
        f"found = load(None, environ={{}}, overrides={{'agent.state_dir': {str(tmp_path)!r}}}); "
        "room = DeviceIdentity(found, SYSTEM_CLOCK); "
        "assert room.credentials and not room.problems, room.problems; "
        "assert not [name for name in sys.modules if name.split('.')[0] == 'cryptography']"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_links_and_name_come_from_the_identity(tmp_path: Path, authority: Authority) -> None:
    joined(tmp_path, authority)
    found = load(None, environ={}, overrides={"agent.state_dir": str(tmp_path)})
    assert found.device_id == "press-7"
    assert [(link.kind, link.url or link.host, link.shows_identity) for link in found.links] == [
        ("http", GATEWAY, True),
        ("mqtt", "broker", True),
    ]
    aside = load(None, environ={}, overrides={"agent.state_dir": str(tmp_path), "agent.use_identity": False})
    assert aside.links == ()
    with pytest.raises(ConfigError, match=r"agent\.device_id is 'other'"):
        load(None, environ={}, overrides={"agent.state_dir": str(tmp_path), "agent.device_id": "other"})


@pytest.mark.parametrize(
    ("link", "shows"),
    [
        ({"kind": "http", "url": "https://g"}, True),
        ({"kind": "http", "url": "http://localhost"}, False),
        ({"kind": "http", "url": "https://g", "token_file": "t"}, False),
        ({"kind": "http", "url": "https://g", "tls_ca_file": "c"}, False),
        ({"kind": "mqtt", "host": "b", "port": 8883}, True),
        ({"kind": "mqtt", "host": "b"}, False),
        ({"kind": "mqtt", "host": "b", "port": 8883, "username": "u"}, False),
        ({"kind": "mqtt", "host": "b", "port": 8883, "tls_ca_file": "system"}, False),
    ],
)
def test_a_tls_link_without_credentials_presents_the_certificate(link: dict[str, object], shows: bool) -> None:
    (found,) = load(None, environ={}, overrides={"links": [link]}).links
    assert found.shows_identity is shows


def test_an_answer_that_is_not_for_this_device_is_refused(authority: Authority) -> None:
    key, other = enrolment.new_key(), enrolment.new_key()
    good = authority.answer(enrolment.signing_request(key))
    stranger = Authority().answer(enrolment.signing_request(key))

    def accept(answer: EnrolAnswer) -> IdentityDocument:
        return enrolment.identity_from(answer, key, authority.hash, gateway=GATEWAY, proxy="")

    assert accept(good).device == "press-7"
    with pytest.raises(ProtocolError, match="another key"):
        accept(authority.answer(enrolment.signing_request(other)))
    with pytest.raises(ProtocolError, match="another name"):
        accept(EnrolAnswer("line-2", good.certificate, good.ca, None, NOW_S))
    with pytest.raises(ProtocolError, match="none of the authorities signed it"):
        accept(EnrolAnswer("press-7", stranger.certificate, good.ca, None, NOW_S))
    for rotten in ("", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(ProtocolError, match="is no certificate for this device"):
            accept(EnrolAnswer("press-7", rotten, good.ca, None, NOW_S))
        with pytest.raises(ProtocolError, match="is no certificate for this device"):
            accept(EnrolAnswer("press-7", good.certificate, rotten, None, NOW_S))


def test_a_new_authority_of_the_gateway_is_accepted(authority: Authority) -> None:
    after = Authority()
    key = enrolment.new_key()
    answer = after.answer(enrolment.signing_request(key))
    assert enrolment.identity_from(answer, key, authority.hash, gateway=GATEWAY, proxy="").authority == after.hash.hex()


def test_the_authority_with_the_token_s_hash_is_found_among_several(authority: Authority) -> None:
    others = "".join(Authority().own.pem for _ in range(2))
    assert enrolment.authority_with(others + authority.own.pem, authority.hash) == authority.own.pem
    assert enrolment.authority_with(others, authority.hash) is None
    assert enrolment.authority_with("nothing", authority.hash) is None


def test_a_damaged_key_is_detected() -> None:
    assert enrolment.is_key(enrolment.new_key())
    for broken in ("", "rotten", enrolment.new_key()[:80]):
        assert not enrolment.is_key(broken)
    key = enrolment.new_key()
    flipped = (key[:at] + chr(ord(key[at]) ^ 1 << at % 7) + key[at + 1 :] for at in range(len(key)))
    assert sum(not enrolment.is_key(each) for each in flipped) > len(key) / 2


def test_a_refusing_disk_is_reported(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "identity").write_text("in the way")
    with pytest.raises(CapacityError, match="cannot be written"):
        joined(tmp_path, authority)


class Handshake:
    """A handshake in memory between a server of the authority and a client with the device's context."""

    def __init__(self, authority: Authority, folder: Path, *, made_s: float) -> None:
        certificate, key = ca.issue_server(authority.own, ("gateway.example.com",), made_s)
        file = folder / "server.pem"
        file.write_bytes(ca.key_pem(key) + ca.pem_of(certificate).encode())
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(file)

    def make(self, context: ssl.SSLContext, host: str = "gateway.example.com") -> None:
        """Makes the handshake; raises the client's error."""
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(to_client, to_server, server_hostname=host)
        server = self._context.wrap_bio(to_server, to_client, server_side=True)
        done = False
        while not done:
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
                done = True
            with suppress(ssl.SSLWantReadError):
                server.do_handshake()


@pytest.mark.parametrize("wall_s", [0.0, NOW_S, 4_102_444_800.0], ids=["1970", "now", "2100"])
def test_a_valid_server_is_trusted_with_any_clock(tmp_path: Path, authority: Authority, wall_s: float) -> None:
    credentials = credentials_at(wall_s, tmp_path, authority)
    assert credentials.problem == ""
    Handshake(authority, tmp_path, made_s=NOW_S).make(credentials.context)


def test_a_server_with_an_expired_certificate_is_refused(tmp_path: Path, authority: Authority) -> None:
    files, identity = joined(tmp_path, authority)
    old = Handshake(authority, tmp_path, made_s=NOW_S - 200 * DAY_S)
    for wall_s in (0.0, NOW_S):
        credentials = Credentials(files, identity, files.revision(), SimulatedClock(wall_start_s=wall_s))
        with pytest.raises(ssl.SSLCertVerificationError, match="the server's certificate ended at"):
            old.make(credentials.context)


def test_a_clock_years_ahead_refuses_and_names_its_time(tmp_path: Path, authority: Authority) -> None:
    credentials = credentials_at(NOW_S + 4 * 365 * DAY_S, tmp_path, authority)
    with pytest.raises(ssl.SSLCertVerificationError, match="by this device's clock it is"):
        Handshake(authority, tmp_path, made_s=NOW_S).make(credentials.context)


def test_a_later_certificate_raises_the_floor(tmp_path: Path, authority: Authority) -> None:
    credentials = credentials_at(0.0, tmp_path, authority)
    Handshake(authority, tmp_path, made_s=NOW_S + 300 * DAY_S).make(credentials.context)
    assert credentials.floor.now_s() == pytest.approx(NOW_S + 299 * DAY_S, abs=2)
    with pytest.raises(ssl.SSLCertVerificationError):  # now it is known to be over
        Handshake(authority, tmp_path, made_s=NOW_S).make(credentials.context)


def test_another_authority_and_another_name_are_refused(tmp_path: Path, authority: Authority) -> None:
    credentials = credentials_at(0.0, tmp_path, authority)
    with pytest.raises(ssl.SSLCertVerificationError):
        Handshake(Authority(), tmp_path, made_s=NOW_S).make(credentials.context)
    with pytest.raises(ssl.SSLCertVerificationError):
        Handshake(authority, tmp_path, made_s=NOW_S).make(credentials.context, "elsewhere.example.com")


def test_an_invalid_date_is_ignored(tmp_path: Path, authority: Authority) -> None:
    credentials = credentials_at(0.0, tmp_path, authority)
    before_s = credentials.floor.floor_s
    for date in ("", "yesterday", "Mon, 01 Jan 2026 00:00:00 +99999999999999999999", "Mon, 01 Jan 0001 00:00:00 -0000"):
        credentials.observe_date(date)
    assert credentials.floor.floor_s == before_s


class Renewing:
    """A renewal on a simulated clock, whose gateway answers, or raises `error`."""

    def __init__(self, folder: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = SimulatedClock(wall_start_s=NOW_S + 55 * DAY_S)  # a day before it may be due
        self.asked_s: list[float] = []
        self.error: LinkDownError | None = None
        files, identity = joined(folder, authority)
        self.credentials = Credentials(files, identity, files.revision(), self.clock)
        self.renewal = CredentialRenewal(self.credentials, no_links, self.clock, random.Random(1))

        async def answer(_url: str, csr: str, _context: ssl.SSLContext, *, proxy: str = "") -> EnrolAnswer:
            self.asked_s.append(self.clock.wall_s())
            if self.error is not None:
                raise self.error
            return authority.answer(csr, now_s=self.clock.wall_s())

        monkeypatch.setattr(enrolment, "renew", answer)

    async def let_days_go_by(self, days: float) -> None:
        for _ in range(int(days * 24)):
            while not self.clock.sleepers:  # noqa: ASYNC110 (threads are on no simulated clock)
                await asyncio.sleep(0)
            await self.clock.advance(3600)


@pytest.fixture
def renewing(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Renewing:
    return Renewing(tmp_path, authority, monkeypatch)


async def test_a_certificate_is_renewed_at_two_thirds_of_its_life(renewing: Renewing) -> None:
    before = renewing.credentials.files.device.read_text()
    task = asyncio.create_task(renewing.renewal.run())
    assert not renewing.asked_s
    await renewing.let_days_go_by(10)
    task.cancel()
    (asked_s,) = renewing.asked_s
    assert 0.60 * 90 * DAY_S < asked_s - NOW_S < 0.70 * 91 * DAY_S
    after = renewing.credentials.files.device.read_text()
    assert after.partition("-----BEGIN CERTIFICATE")[0] != before.partition("-----BEGIN CERTIFICATE")[0]
    assert renewing.credentials.identity.not_after_s == pytest.approx(asked_s + 90 * DAY_S, abs=2)
    assert renewing.renewal.problem == ""


async def test_a_failed_renewal_is_retried_with_backoff(renewing: Renewing) -> None:
    renewing.error = LinkDownError("The gateway is away.")
    before = renewing.credentials.files.device.read_text()
    task = asyncio.create_task(renewing.renewal.run())
    await renewing.let_days_go_by(10)
    assert 5 < len(renewing.asked_s) < 10 * 24 * 4  # an hour and less between two, half an hour on average
    assert "The gateway is away." in renewing.renewal.problem
    assert renewing.credentials.files.device.read_text() == before
    renewing.error = None
    await renewing.let_days_go_by(1)
    task.cancel()
    assert renewing.renewal.problem == ""
    assert renewing.credentials.files.device.read_text() != before


async def test_a_lack_of_threads_does_not_end_the_renewal(renewing: Renewing, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as lacking:
        lacking.setattr(renewing.credentials.floor, "save", refuse)
        task = asyncio.create_task(renewing.renewal.run())
        await until(lambda: renewing.clock.sleepers or task.done())
        assert not task.done()
    await renewing.let_days_go_by(10)
    task.cancel()
    assert len(renewing.asked_s) == 1


async def test_a_renewal_does_not_overwrite_a_new_identity(tmp_path: Path, renewing: Renewing) -> None:
    files, anew = joined(tmp_path, Authority(), days=30)
    before = files.device.read_text()
    with pytest.raises(ConfigError, match="joined again since"):
        await renewing.renewal.renew()
    assert files.read() == anew
    assert files.device.read_text() == before
