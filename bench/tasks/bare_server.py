"""A bare server of one model over HTTP, next to which a gateway is measured.

    python -m bench.tasks.bare_server BUNDLE PORT

It has a thread for each connection and one run on each core, and keeps freed memory like the gateway.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Semaphore

import numpy as np

from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import open_bundle
from firstline_core.runtime.memory import keep_freed_memory
from firstline_core.runtime.select import RuntimeOptions


def main() -> None:
    keep_freed_memory()
    bundle = open_bundle(Path(sys.argv[1]))
    loaded = load_model(bundle, bundle.manifest.models[0], RuntimeOptions(threads=1))
    cores = Semaphore(len(os.sched_getaffinity(0)))

    class Connection(StreamRequestHandler):
        disable_nagle_algorithm = True

        def handle(self) -> None:
            while self.rfile.readline():
                headers = dict(line.lower().split(b": ", 1) for line in iter(self.rfile.readline, b"\r\n"))
                content = self.rfile.read(int(headers[b"content-length"]))
                with cores:
                    loaded.run(loaded.prepare({"image": np.array([content], object)}))
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with ThreadingTCPServer(("127.0.0.1", int(sys.argv[2])), Connection) as server:
        server.daemon_threads = True
        server.serve_forever()


if __name__ == "__main__":
    main()
