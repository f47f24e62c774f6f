"""`firstline keys` and `firstline model` against a real gateway: from no keys to a named version, and back."""

import json
import stat
from pathlib import Path

from click.testing import Result
from support.audits import uncertified_digits
from support.commands import firstline
from support.digits import digits_bundle
from support.gateway import DIGITS
from support.registry_site import RegistrySite


async def run(site: RegistrySite, *arguments: object, code: int = 0, passphrase: str = "") -> Result:
    return await firstline(site.url, site.operator, *arguments, code=code, FIRSTLINE_KEY_PASSPHRASE=passphrase)


def mode(file: str) -> int:
    return stat.S_IMODE(Path(file).stat().st_mode)


def key_files(pattern: str) -> list[Path]:
    return sorted(Path("keys").glob(pattern))


async def test_keys_push_alias_and_removal(site: RegistrySite, tmp_path: Path) -> None:
    created = json.loads((await run(site, "keys", "init", "-o", "json")).stdout)
    assert len(created["keys"]) == 4 and all(mode(key) == 0o600 for key in created["keys"])
    await run(site, "keys", "init", code=2)

    pushed = json.loads((await run(site, "model", "push", DIGITS, "-o", "json")).stdout)
    assert (pushed["name"], pushed["version"], pushed["is_new"], pushed["known_bytes"]) == ("digits", 1, True, 0)
    two = digits_bundle(tmp_path / "two", 2).path
    needs = ("--needs", "edge-onnx:arch=aarch64,x86_64", "--needs", "edge-onnx:memory_mb=64")
    assert "signed; 7" in (await run(site, "model", "push", two, *needs)).stdout
    assert "was signed before; 0 bytes sent" in (await run(site, "model", "push", two, *needs)).stdout

    await run(site, "alias", "set", "digits", "champion", "1")
    await run(site, "alias", "set", "digits", "champion", "2")
    shown = (await run(site, "model", "get", "digits", "champion")).stdout
    assert "digits version 2, champion" in shown and "aarch64, x86_64" in shown and "64 MiB" in shown
    reverted = await run(site, "alias", "revert", "digits", "champion")
    assert reverted.stdout == "digits champion points to version 1.\n"
    history = json.loads((await run(site, "alias", "history", "digits", "champion", "-o", "json")).stdout)
    assert [one["version"] for one in history] == [1, 2, 1]
    assert {one["by"] for one in history} == {"application:ops"}
    listed = (await run(site, "alias", "list")).stdout
    assert "champion" in listed

    await run(site, "model", "pull", "digits", "champion", tmp_path / "pulled")
    assert (tmp_path / "pulled" / "full.onnx").read_bytes() == (DIGITS / "full.onnx").read_bytes()
    anchor = ("--root", created["anchor"], "--keys", tmp_path / "nobody")
    await run(site, "model", "pull", "digits", "2", tmp_path / "again", *anchor, "-o", "json")

    refused = await run(site, "model", "delete", "digits", "1", code=1)
    assert "The alias champion points to digits version 1" in refused.stderr
    assert "no longer signed" in (await run(site, "model", "delete", "digits", "2")).stdout
    found = json.loads((await run(site, "model", "list", "digits", "-o", "json")).stdout)
    assert [(one["version"], one["aliases"]) for one in found] == [(1, ["champion"])]
    assert "digits" in (await run(site, "model", "list")).stdout
    assert "Did you mean 'digits'?" in (await run(site, "model", "get", "digts", "1", code=1)).stderr
    assert (await run(site, "alias", "delete", "digits", "champion")).stdout.endswith("points to nothing.\n")


async def test_a_push_warns_and_names_another_fleets_keys(site: RegistrySite, tmp_path: Path) -> None:
    await run(site, "keys", "init")
    bare = await run(site, "model", "push", uncertified_digits(tmp_path))
    assert "Warning: digits version 1 has no certificate that audits can test" in bare.stderr
    (tmp_path / "online.json").write_bytes((await site.client.get("/fleet/v1/registry/online-key")).content)
    await run(site, "keys", "init", "--online-key", tmp_path / "online.json", "--keys", "others")
    refused = await run(site, "model", "push", DIGITS, "--keys", "others", code=1)
    assert "If others does not hold the keys that published this registry's first root" in refused.stderr


async def test_keys_are_rotated_revoked_and_renewed(site: RegistrySite, tmp_path: Path) -> None:
    await run(site, "keys", "init")
    before = json.loads((await run(site, "keys", "get", "-o", "json")).stdout)
    assert before["warnings"] == [] and before["published"]["root"] == 1
    assert "Published: root 2, targets 2." in (await run(site, "keys", "rotate", "targets")).stdout
    assert "Published: root 3, targets 2." in (await run(site, "keys", "rotate", "online")).stdout
    root_key = next(one["key"] for one in before["keys"] if one["role"] == "root")
    assert "Published: root 4, targets 2." in (await run(site, "keys", "revoke", root_key[:8])).stdout
    assert "Published: root 5, targets 3." in (await run(site, "keys", "renew")).stdout
    assert (await run(site, "keys", "publish")).stdout == "The registry is up to date.\n"
    after = json.loads((await run(site, "keys", "get", "-o", "json")).stdout)
    assert root_key not in {one["key"] for one in after["keys"]}
    assert [one["version"] for one in after["roles"] if one["role"] == "root"] == [5]
    refused = await run(site, "keys", "revoke", root_key[:8], code=2)
    assert "names no key" in refused.stderr
    online = next(one["key"] for one in after["keys"] if one["role"] == "snapshot")
    assert "rotate online" in (await run(site, "keys", "revoke", online, code=2)).stderr
    assert "leave it out" in (await run(site, "keys", "rotate", "online", "--key", "zz", code=2)).stderr
    assert "has no one key" in (await run(site, "keys", "rotate", "root", "--key", "zz", code=2)).stderr
    await run(site, "model", "push", DIGITS)


async def test_separate_root_key_holders_sign_in_turn(site: RegistrySite, tmp_path: Path) -> None:
    await run(site, "keys", "init")
    first, second, third = key_files("root-*.key")
    safe = tmp_path / "safe"
    safe.mkdir()
    for file in (second, third):
        file.rename(safe / file.name)
    drafted = await run(site, "keys", "rotate", "targets")
    assert "lacks 1 signature:" in drafted.stderr and first.exists()
    assert (await run(site, "keys", "get", code=1)).stderr.count("lacks 1 signature") == 1
    signed = await run(site, "keys", "sign", "--root-key", safe / second.name)
    assert signed.stdout == "Published: root 2, targets 2.\n"
    assert "nothing lacks a signature" in (await run(site, "keys", "sign", code=2)).stderr


async def test_keys_are_encrypted_and_created_offline(site: RegistrySite, tmp_path: Path) -> None:
    fetched = await site.client.get("/fleet/v1/registry/online-key")
    (tmp_path / "online.json").write_bytes(fetched.content)
    created = await run(site, "keys", "init", "--online-key", tmp_path / "online.json", passphrase="correct horse")
    assert "Nothing is published yet" in created.stderr
    assert all(b"ENCRYPTED" in path.read_bytes() for path in key_files("*.key"))
    await run(site, "keys", "publish", passphrase="correct horse")
    assert "is encrypted" in (await run(site, "model", "push", DIGITS, code=2)).stderr
    assert "passphrase right?" in (await run(site, "model", "push", DIGITS, code=2, passphrase="wrong")).stderr
    secret = tmp_path / "passphrase"
    secret.write_text("correct horse\n")
    await run(site, "model", "push", DIGITS, "--passphrase-file", secret)
    key_files("targets-*.key")[0].chmod(0o644)
    assert "chmod 600" in (await run(site, "keys", "renew", code=2, passphrase="correct horse")).stderr


INVALID: list[tuple[tuple[str, ...], str]] = [
    (("keys", "get"), "`firstline keys init` makes them"),
    (("keys", "sign"), "nothing lacks a signature"),
    (("keys", "init", "--online-key", "nothing"), "nothing does not exist; check the path"),
    (("keys", "init", "--online-key", str(DIGITS / "manifest.json")), "holds no gateway's online key"),
    (("model", "push", str(DIGITS), "--needs", "edge-onnx:colour=red"), "is not valid; write VARIANT"),
    (("model", "push", str(DIGITS), "--needs", "edge-onnx:memory_mb=much"), "is not valid; write VARIANT"),
    (("model", "pull", "digits", "1", "x"), "name the first root metadata with --root"),
]


async def test_invalid_requests_print_one_sentence(site: RegistrySite) -> None:
    for arguments, sentence in INVALID:
        refused = await run(site, *arguments, code=2)
        assert sentence in refused.stderr
        assert "Traceback" not in refused.output
