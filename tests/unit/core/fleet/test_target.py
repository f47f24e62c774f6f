"""Signed targets: their custom fields, and the files that a device fetches."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.gateway import DIGITS

from bench.support.bundles import with_certificate
from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, parse_manifest
from firstline_core.errors import IncompatibleTargetError, IntegrityError, NotFoundError
from firstline_core.fleet import target
from firstline_core.storage.artefact import SignedFile

ONNX = target.Hardware(frozenset({"onnx"}), "x86_64")


def digits() -> Manifest:
    return parse_manifest((DIGITS / MANIFEST_NAME).read_bytes())


def signed(manifest: Manifest, extra_needs: dict[str, target.ExtraNeeds] | None = None) -> dict[str, SignedFile]:
    """A bundle's targets as metadata brings them: by path, custom fields from JSON."""
    sizes = {artefact.file: artefact.size_bytes for artefact in manifest.artefacts}
    found = {}
    for file, custom in target.target_fields(manifest, extra_needs).items():
        path = target.target_path(manifest.name, manifest.version, file)
        found[path] = SignedFile(path, sizes.get(file, 0), "0" * 64, msgspec.json.decode(msgspec.json.encode(custom)))
    return found


def bundle(extra_needs: dict[str, target.ExtraNeeds] | None = None) -> target.ListedBundle:
    return target.find_bundle(signed(digits(), extra_needs), "digits", 1)


def test_a_device_never_gets_the_full_model() -> None:
    found = bundle()
    assert {variant.id for variant in found.release.variants} == {"edge-onnx", "edge-tflite-float", "edge-tflite-int8"}
    for variant in found.release.variants:
        paths = [file.path for file in target.files_for(found, variant.id)]
        assert paths[0] == "digits/1/manifest.json"
        assert len(paths) == 3 and Path(paths[1]).stem == variant.id and paths[2] == "digits/1/golden.json"
        assert variant.needs.size_bytes == sum(file.size_bytes for file in target.files_for(found, variant.id)[1:])
    assert [file.path for file in target.files_for(found, target.FULL)] == [
        "digits/1/manifest.json",
        "digits/1/full.onnx",
    ]
    assert found.release.full_digest == digits().full_digest


def test_a_shared_file_lists_each_variant() -> None:
    manifest = digits()
    edge = tuple(msgspec.structs.replace(model, artefact=manifest.edge[0].artefact) for model in manifest.edge)
    found = target.find_bundle(signed(msgspec.structs.replace(manifest, edge=edge)), "digits", 1)
    assert target.files_for(found, "edge-onnx")[1:] == target.files_for(found, "edge-tflite-int8")[1:]


def test_the_first_suitable_variant_is_chosen() -> None:
    assert [variant.id for variant in target.choose_variants(bundle().release, ONNX)] == ["edge-onnx"]
    (first,) = target.choose_variants(bundle().release, ONNX._replace(runtimes=frozenset({"tflite"})))
    assert first.id.startswith("edge-tflite")
    extra_needs = {variant.id: target.ExtraNeeds(("aarch64",), 512) for variant in bundle().release.variants}
    with pytest.raises(IncompatibleTargetError, match="edge-onnx is for aarch64, and this is x86_64") as caught:
        target.choose_variants(bundle(extra_needs).release, ONNX)
    assert "edge-tflite-int8 needs the runtime tflite, and here is onnx" in caught.value.message
    small = ONNX._replace(architecture="aarch64", memory_mb=256)
    with pytest.raises(IncompatibleTargetError, match="needs 512 MiB of memory, and here are 256"):
        target.choose_variants(bundle(extra_needs).release, small)
    assert target.choose_variants(bundle().release, ONNX._replace(free_bytes=5)) == target.choose_variants(
        bundle().release, ONNX
    ), "that is told later"
    none = msgspec.structs.replace(bundle().release, variants=())
    with pytest.raises(IncompatibleTargetError, match="no edge variant"):
        target.choose_variants(none, ONNX)


def test_a_device_with_several_variants_gets_all_that_fit() -> None:
    found, both = bundle(), ONNX._replace(runtimes=frozenset({"onnx", "tflite"}), several=True)
    variants = target.choose_variants(found.release, both)
    assert variants == found.release.variants
    files = [file.path for file in target.files_for(found, *(variant.id for variant in variants))]
    assert len(files) == len(set(files)) == 5 and "digits/1/full.onnx" not in files
    assert [variant.id for variant in target.choose_variants(found.release, ONNX._replace(several=True))] == [
        "edge-onnx"
    ]
    sizes_bytes = [variant.needs.size_bytes for variant in found.release.variants]
    device = both._replace(free_bytes=sizes_bytes[0] + sizes_bytes[2])
    assert target.choose_variants(found.release, device) == (found.release.variants[0], found.release.variants[2])
    assert target.choose_variants(found.release, both._replace(free_bytes=5)) == found.release.variants[:1]


def test_only_a_valid_certificate_is_summarised() -> None:
    manifest = digits()
    plain = msgspec.structs.replace(manifest.edge[1], certificate=None)
    certified = with_certificate(manifest.edge[0], manifest)
    void = with_certificate(manifest.edge[2], manifest, edge_digest="1" * 64)
    found = target.find_bundle(signed(msgspec.structs.replace(manifest, edge=(certified, plain, void))), "digits", 1)
    by_id = {variant.id: variant.certificate for variant in found.release.variants}
    summary = by_id[certified.id]
    assert (summary.epsilon, summary.threshold) == ("0.05", "0.9")
    assert "at most 5 %" in summary.promise
    assert by_id[plain.id] is None
    assert by_id[void.id] is None


def test_bundles_are_found_by_path() -> None:
    files = signed(digits()) | {
        path: SignedFile(path, 1, "0" * 64, {})
        for path in (
            "x",
            "digits/one/manifest.json",
            "digits/01/manifest.json",
            "a b/1/manifest.json",
            "/1/manifest.json",
        )
    }
    assert target.listed_bundles(files) == [("digits", 1)]
    assert target.bundle_of_target("digits/12/sub/folder.onnx") == ("digits", 12)
    assert target.bundle_of_target("digits/12/") is None
    with pytest.raises(NotFoundError, match="has no version 2 of digits"):
        target.find_bundle(files, "digits", 2)


@pytest.mark.parametrize(
    ("path", "custom", "sentence"),
    [
        ("digits/1/manifest.json", {}, "are not valid"),
        ("digits/1/manifest.json", {"bundle": "other", "version": 1, "variants": []}, "signed as other version 1"),
        ("digits/1/full.onnx", {"models": "full"}, "are not valid"),
        ("digits/1/../2/x", {"models": []}, "not a path within a bundle"),
        ("digits/1//etc/passwd", {"models": []}, "not a path within a bundle"),
    ],
)
def test_invalid_signed_fields_are_refused(path: str, custom: dict[str, Any], sentence: str) -> None:
    files = signed(digits())
    files[path] = SignedFile(path, 1, "0" * 64, custom)
    with pytest.raises(IntegrityError, match=sentence):
        target.find_bundle(files, "digits", 1)


def test_fields_of_a_newer_version_are_ignored() -> None:
    files = signed(digits())
    path = "digits/1/manifest.json"
    files[path] = files[path]._replace(custom={**files[path].custom, "format": 2, "colour": "green"})
    assert target.find_bundle(files, "digits", 1).release.variants


def test_an_artefact_with_the_manifests_path_is_refused() -> None:
    manifest = digits()
    artefact = msgspec.structs.replace(manifest.edge[0].artefact, file=MANIFEST_NAME)
    edge = (msgspec.structs.replace(manifest.edge[0], artefact=artefact),)
    with pytest.raises(IntegrityError, match="rename that file"):
        target.target_fields(msgspec.structs.replace(manifest, edge=edge))


@pytest.mark.parametrize("sha256", ["../../../etc/passwd", "0" * 63, "", "A" * 64])
@pytest.mark.parametrize("file", ["digits/1/manifest.json", "digits/1/edge-onnx.onnx"])
def test_a_signed_digest_must_be_a_sha256(file: str, sha256: str) -> None:
    files = signed(digits())
    files[file] = files[file]._replace(sha256=sha256)
    with pytest.raises(IntegrityError, match=file):
        target.find_bundle(files, "digits", 1)
