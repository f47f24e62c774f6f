"""Whatever order devices are invited, enrolled, renewed and revoked in: exactly the intended devices are admitted.

Two replicas share the store; each learns of changes when it looks.
"""

import shutil
import tempfile
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.databases import sqlite_store

from firstline_gateway.identity import enrolment
from firstline_gateway.identity.credentials import KnownCredentials, read_changes
from firstline_gateway.identity.enrolment import Issued
from firstline_gateway.tables import open_database

DEVICES = st.sampled_from(["a", "b"])
KEYS = st.sampled_from(["key 1", "key 2"])
LIFETIME_S = 1000.0


class Enrolment(RuleBasedStateMachine):
    """The model keeps, in plain sets, what the store and the memory must say."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.database = open_database(sqlite_store(self.folder))
        self.replicas = [KnownCredentials(), KnownCredentials()]
        self.now_s = 1_800_000_000.0
        self.serials = count(1)
        self.open_tokens: dict[str, str] = {}  # the one that counts, by device
        self.used_tokens: dict[str, tuple[str, str, str]] = {}  # secret: device, key, certificate
        self.spent: set[str] = set()
        self.valid: dict[str, str] = {}  # serial: device
        self.revoked: set[str] = set()

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)

    def issue(self, device: str) -> Issued:
        serial = format(next(self.serials), "x")
        return Issued(serial, f"pem {serial}", self.now_s + LIFETIME_S)

    @rule(device=DEVICES)
    def invite(self, device: str) -> None:
        secret = f"secret {next(self.serials)}"
        with self.database.begin() as on:
            invitations = [(device, enrolment.secret_hash(secret))]
            enrolment.invite(on, invitations, by="x", now_s=self.now_s, expires_s=self.now_s + LIFETIME_S)
        if device in self.open_tokens:
            self.spent.add(self.open_tokens[device])
        self.open_tokens[device] = secret

    @rule(device=DEVICES, key=KEYS)
    def enrol(self, device: str, key: str) -> None:
        if device not in self.open_tokens:
            return
        secret = self.open_tokens.pop(device)
        with self.database.begin() as on:
            found = enrolment.redeem(on, enrolment.secret_hash(secret), key, self.issue, self.now_s, address="")
        assert found.device == device and not found.again
        for serial in [serial for serial, owner in self.valid.items() if owner == device]:
            del self.valid[serial]
        self.valid[found.certificate.removeprefix("pem ")] = device
        self.used_tokens[secret] = device, key, found.certificate
        self.revoked.discard(device)

    @rule(key=KEYS)
    def try_used_tokens(self, key: str) -> None:
        for secret, (device, used_key, certificate) in self.used_tokens.items():
            with self.database.begin() as on:
                found = enrolment.redeem(on, enrolment.secret_hash(secret), key, self.issue, self.now_s, address="")
            assert (found is not None) == (key == used_key)
            if found is not None:
                assert (found.device, found.certificate, found.again) == (device, certificate, True)

    @rule(key=KEYS)
    def try_spent_tokens(self, key: str) -> None:
        for secret in self.spent:
            with self.database.begin() as on:
                assert (
                    enrolment.redeem(on, enrolment.secret_hash(secret), key, self.issue, self.now_s, address="") is None
                )

    @rule()
    def renew(self) -> None:
        for serial, device in list(self.valid.items())[:2]:
            with self.database.begin() as on:
                pem = enrolment.renew(on, device, serial, self.issue, self.now_s)
            self.valid[pem.removeprefix("pem ")] = device

    @rule(device=DEVICES)
    def revoke(self, device: str) -> None:
        with self.database.begin() as on:
            revoked = enrolment.revoke(on, device, "ops", self.now_s)
        was_enrolled = any(found[0] == device for found in self.used_tokens.values()) or device in self.revoked
        assert revoked == (was_enrolled or device in self.open_tokens)
        if was_enrolled:
            self.revoked.add(device)
        if device in self.open_tokens:
            self.spent.add(self.open_tokens.pop(device))
        secrets = {secret for secret, found in self.used_tokens.items() if found[0] == device}
        self.spent |= secrets
        self.used_tokens = {secret: found for secret, found in self.used_tokens.items() if secret not in secrets}
        self.valid = {serial: owner for serial, owner in self.valid.items() if owner != device}

    @rule(replica=st.sampled_from([0, 1]))
    def look(self, replica: int) -> None:
        memory = self.replicas[replica]
        with self.database.reading() as on:
            memory.apply(read_changes(on, memory.version))
        self.agrees(memory)

    @invariant()
    def a_fresh_replica_agrees(self) -> None:
        memory = KnownCredentials()
        with self.database.reading() as on:
            memory.apply(read_changes(on, 0))
        self.agrees(memory)

    def agrees(self, memory: KnownCredentials) -> None:
        certificates = memory._certificates.values()
        assert {one.serial: one.device for one in certificates if one.revoked_s is None} == self.valid
        assert {device for device in ("a", "b") if memory.is_revoked(device)} == self.revoked


TestEnrolment = Enrolment.TestCase
TestEnrolment.settings = settings(
    max_examples=25, stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow], deadline=None
)
