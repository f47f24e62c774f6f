"""Pins the base images of the Dockerfiles and of Compose by digest, as the locks pin packages.

    python3 requirements/pin_images.py

Rewrites `NAME:TAG` to `NAME:TAG@sha256:...` with the digest that the registry has for the tag now, for all platforms.
An image that is pinned already gets the current digest of its tag. Needs docker with buildx, and a network.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
FILES = (
    "docker-compose.yml",
    "edge_agent/Dockerfile",
    "cloud_gateway/Dockerfile",
    "cloud_gateway/console/Dockerfile",
)
_IMAGE = re.compile(r"^( *(?:FROM|image:) +)([\w./-]+:[\w.-]+)(?:@sha256:[0-9a-f]{64})?", re.MULTILINE)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def pin(files: Iterable[Path], digest_of: Callable[[str], str]) -> dict[str, str]:
    """Rewrites the files and returns the digest of each image.

    Args:
        files: Dockerfiles and Compose files.
        digest_of: returns the digest of NAME:TAG. If it raises, no file is changed.
    """
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    images = sorted({match[2] for text in texts.values() for match in _IMAGE.finditer(text)})
    digests = {image: digest_of(image) for image in images}
    for file, text in texts.items():
        file.write_text(_IMAGE.sub(lambda match: f"{match[1]}{match[2]}@{digests[match[2]]}", text), encoding="utf-8")
    return digests


def registry_digest(image: str) -> str:
    """Returns the digest of an image's index in its registry.

    Raises:
        SystemExit: docker cannot tell.
    """
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("docker is not installed; no file was changed.") from None
    digest = done.stdout.strip()
    if done.returncode or not _DIGEST.fullmatch(digest):
        why = (done.stderr.strip() or digest or "no answer").splitlines()[0]
        raise SystemExit(f"The digest of {image} could not be read, and no file was changed: {why}")
    return digest


def main() -> int:
    for image, digest in pin([CHECKOUT / name for name in FILES], registry_digest).items():
        print(f"{image}@{digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
