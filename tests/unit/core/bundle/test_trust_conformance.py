"""Requirements of The Update Framework's conformance suite beyond `test_trust.py`: keys, recovery, delegation.

The suite itself is `make tuf-conformance`; these are some of its cases on the client that devices run.
"""

from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner, Key
from tuf.api.metadata import DelegatedRole, Delegations, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp

from bench.support.signed_repository import DAY, START, SignedRepository
from firstline_core.bundle.trust import Trust
from firstline_core.clock import SimulatedClock
from firstline_core.errors import IntegrityError, SignatureError

CLOCK = SimulatedClock()
SIGNERS = [CryptoSigner.generate_ed25519() for _ in range(8)]


@pytest.fixture
def repository() -> SignedRepository:
    return SignedRepository()


def device(folder: Path, repository: SignedRepository, days: float = 0.0) -> Trust:
    """Believes the repository's first root."""
    now_s = (START + days * DAY).timestamp()
    return Trust(folder, repository, anchor=repository.anchor, now_s=lambda: now_s, clock=SimulatedClock())


def versions(trust: Trust) -> dict[str, int]:
    """The version of each role's metadata after refreshing."""
    return {signed.type: signed.version for signed in trust.updater.trusted}


def with_keys(repository: SignedRepository, role: str, keys: str, threshold: int, signed_by: str) -> None:
    """The root names `keys` of `SIGNERS` for a role, of which `threshold` must sign; `signed_by` do."""
    repository.root.roles[role].keyids.clear()
    for key in keys:
        repository.root.add_key(SIGNERS[int(key)].public_key, role)
    repository.root.roles[role].threshold = threshold
    repository.signers[role] = [SIGNERS[int(signer)] for signer in signed_by]


@pytest.mark.parametrize(
    ("first", "second", "accepted"),
    [
        (("0", 1, "304"), ("1", 1, "31042"), True),  # signatures that count for nothing harm nothing
        (("01234", 3, "024"), ("01345", 3, "041"), True),
        (("0", 1, "0"), ("1", 1, "123"), False),  # the old key did not sign
        (("0", 1, "0"), ("1", 1, "023"), False),  # the new key did not
        (("012", 1, "0"), ("012", 2, "1"), False),
        (("012", 2, "01"), ("012", 1, "0"), False),
    ],
)
def test_a_root_needs_old_and_new_signatures(
    tmp_path: Path,
    repository: SignedRepository,
    first: tuple[str, int, str],
    second: tuple[str, int, str],
    accepted: bool,
) -> None:
    with_keys(repository, Root.type, *first)
    repository.publish_root()
    repository.root.version = 2
    with_keys(repository, Root.type, *second)
    repository.publish_root()
    found = device(tmp_path, repository)
    if accepted:
        found.refresh()
        assert versions(found)["root"] == 2
    else:
        with pytest.raises(SignatureError, match=r"2\.root\.json .*\d/\d keys"):
            found.refresh()
        assert (tmp_path / "root.json").read_bytes() == repository.anchor


@pytest.mark.parametrize("role", [Timestamp.type, Snapshot.type, Targets.type])
@pytest.mark.parametrize(
    ("keys", "accepted"), [(("1", 1, "213"), True), (("1", 1, "023"), False), (("015", 3, "01"), False)]
)
def test_other_metadata_needs_enough_signatures_of_its_keys(
    tmp_path: Path, repository: SignedRepository, role: str, keys: tuple[str, int, str], accepted: bool
) -> None:
    found = device(tmp_path, repository)
    found.refresh()
    with_keys(repository, role, *keys)
    repository.root.version = 2
    repository.publish_root()
    repository.publish()
    if accepted:
        found.refresh()
        assert versions(found)[role] == 2
    else:
        with pytest.raises(SignatureError, match=role):
            found.refresh()


def test_one_key_listed_twice_counts_once(tmp_path: Path, repository: SignedRepository) -> None:
    found = device(tmp_path, repository)
    found.refresh()
    with_keys(repository, Snapshot.type, "0", 2, "0")
    repository.root.roles[Snapshot.type].keyids.append(SIGNERS[0].public_key.keyid)
    repository.root.version = 2
    repository.publish_root()
    repository.publish()
    with pytest.raises(IntegrityError, match=r"2\.root\.json"):
        found.refresh()
    assert (tmp_path / "root.json").read_bytes() == repository.anchor


def again(key: Key, keyid: str, **values: str) -> Key:
    """The same key under another id, written otherwise."""
    return Key.from_dict(keyid, {**key.to_dict(), "keyval": {**key.keyval, **values}})


@pytest.mark.parametrize("role", [Root.type, Targets.type])
@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_one_key_under_two_ids_is_refused(tmp_path: Path, repository: SignedRepository, role: str, kind: str) -> None:
    found = device(tmp_path, repository)
    found.refresh()
    private = Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP256R1())
    signer = CryptoSigner(private)
    public = signer.public_key.keyval["public"]
    written = public.upper() if kind == "ed25519" else public.replace("-----\n", "-----\n\n", 1)
    second = again(signer.public_key, "ab" * 32, public=written)
    repository.root.roles[role].keyids.clear()
    repository.root.roles[role].threshold = 2
    repository.root.add_key(signer.public_key, role)
    repository.root.add_key(second, role)
    before = repository.signers[role]
    repository.signers[role] = [signer, CryptoSigner(private, second)]
    repository.root.version = 2
    repository.publish_root(by=[*before, *repository.signers[role]] if role == Root.type else None)
    repository.publish()
    with pytest.raises(IntegrityError, match=rf"2\.root\.json.*for {role} the root names one key twice.*{'ab' * 32}"):
        found.refresh()
    assert (tmp_path / "root.json").read_bytes() == repository.anchor
    assert not (tmp_path / "root_history" / "2.root.json").exists()
    # The same holds for an anchor, also for a stored one.
    trust = Trust(
        tmp_path / "other", repository, anchor=repository.files["2.root.json"], now_s=START.timestamp, clock=CLOCK
    )
    with pytest.raises(IntegrityError, match="one key twice"):
        trust.refresh()
    (tmp_path / "root_history" / "2.root.json").write_bytes(repository.files["2.root.json"])
    with pytest.raises(IntegrityError, match="one key twice"):
        device(tmp_path, repository).refresh()


def test_another_timestamp_of_the_same_version_is_ignored(tmp_path: Path, repository: SignedRepository) -> None:
    found = device(tmp_path, repository)
    found.refresh()
    before = (tmp_path / "timestamp.json").read_bytes()
    repository.timestamp.snapshot_meta.version = 100
    repository.publish_timestamp()
    found.refresh()
    assert (tmp_path / "timestamp.json").read_bytes() == before


def test_expired_stored_metadata_still_verifies_newer_metadata(tmp_path: Path, repository: SignedRepository) -> None:
    device(tmp_path, repository).refresh()
    repository.timestamp.expires = repository.snapshot.expires = START + 21 * DAY
    repository.publish()
    later = device(tmp_path, repository, days=18)
    later.refresh()
    assert versions(later) == {"root": 1, "timestamp": 2, "snapshot": 2, "targets": 2}


@pytest.mark.parametrize("them", ["them", "?", "#", "/them", "../them"])
def test_delegated_targets_are_found(tmp_path: Path, repository: SignedRepository, them: str) -> None:
    theirs, signer = Targets(expires=START + DAY), SIGNERS[0]
    key = signer.public_key
    left = DelegatedRole(them, [key.keyid], 1, terminating=True, paths=["theirs/*"])
    repository.targets.delegations = Delegations({key.keyid: key}, {them: left})
    for path in ("theirs/model", "ours/model"):
        theirs.targets[path] = TargetFile.from_data(path, b"content", ["sha256"])
    # They leave everything back to themselves, again and again.
    again = DelegatedRole(them, [key.keyid], 1, terminating=False, paths=["*"])
    theirs.delegations = Delegations({key.keyid: key}, {them: again})
    name = f"1.{quote(them, safe='')}.json"
    repository.files[name] = repository.signed(theirs, [signer])
    repository.snapshot.meta[f"{them}.json"] = MetaFile(1)
    repository.publish()
    folder = tmp_path / "a" / "b"
    trust = device(folder, repository)
    trust.refresh()
    assert trust.updater.get_targetinfo("theirs/model") is not None
    assert trust.updater.get_targetinfo("ours/model") is None
    assert trust.updater.get_targetinfo("theirs/another") is None
    assert repository.asked.count(name) == 1
    outside = [path for path in tmp_path.rglob("*.json") if not path.is_relative_to(folder)]
    assert outside == []
