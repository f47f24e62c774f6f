"""The command line that the TUF conformance suite drives a client by, over our client and nothing else.

    client.py --metadata-dir DIR init ROOT
    client.py --metadata-dir DIR --metadata-url URL refresh
    client.py --metadata-dir DIR --metadata-url URL --target-name NAME --target-base-url URL --target-dir DIR download

Exit code 0 where it succeeded, 1 where anything was refused. https://github.com/theupdateframework/tuf-conformance
"""

import argparse
import io
import os
import sys
import time
from pathlib import Path
from urllib.parse import quote

import httpx
from tuf.api.exceptions import DownloadError, LengthOrHashMismatchError, RepositoryError
from tuf.api.metadata import TargetFile

from firstline_core.bundle.trust import Trust
from firstline_core.bundle.trust_http import HttpMetadata
from firstline_core.errors import FirstlineError, IntegrityError
from firstline_core.storage.files import write_whole


def main() -> int:
    parser = argparse.ArgumentParser()
    for option in ("--metadata-url", "--metadata-dir", "--target-name", "--target-base-url", "--target-dir"):
        parser.add_argument(option)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("init").add_argument("root", type=Path)
    commands.add_parser("refresh")
    commands.add_parser("download")
    found = parser.parse_args()
    folder = Path(found.metadata_dir)
    if found.command == "init":
        write_whole(folder / "root.json", found.root.read_bytes())
        return 0
    # The suite sets the time by faketime, and counts requests: no retries, no environment.
    with httpx.Client(trust_env=False, timeout=10) as client:
        rotations = int(os.environ.get("MAX_ROOT_ROTATIONS", "256"))
        source = HttpMetadata(client, found.metadata_url)
        trust = Trust(folder, source, anchor=None, now_s=time.time, rotations_limit=rotations)
        try:
            trust.refresh()
            if found.command == "download":
                _download(client, trust, found.target_name, found.target_base_url, Path(found.target_dir))
        except (FirstlineError, RepositoryError, DownloadError) as error:
            print(f"{type(error).__name__}: {getattr(error, 'message', error)}", file=sys.stderr)
            return 1
    return 0


def _download(client: httpx.Client, trust: Trust, name: str, base_url: str, folder: Path) -> None:
    target = trust.updater.get_targetinfo(name)
    if target is None:
        raise IntegrityError(f"{name} is not among the targets.")
    file = folder / quote(name, safe="")
    if file.exists() and _fits(target, file.read_bytes()):
        return
    path = target.path
    if trust.updater.trusted.root.consistent_snapshot:
        path = target.get_prefixed_paths()[0]
    content = bytearray()
    with client.stream("GET", f"{base_url.rstrip('/')}/{path}", headers={"Accept-Encoding": "identity"}) as reply:
        if reply.status_code != httpx.codes.OK:
            raise IntegrityError(f"{path}: HTTP status {reply.status_code}.")
        for part in reply.iter_raw():
            content += part
            if len(content) > target.length:
                raise IntegrityError(f"{path} is longer than its {target.length} bytes.")
    if not _fits(target, bytes(content)):
        raise IntegrityError(f"{path} is not what was signed.")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(file, bytes(content))


def _fits(target: TargetFile, content: bytes) -> bool:
    try:
        target.verify_length_and_hashes(io.BytesIO(content))
    except LengthOrHashMismatchError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
