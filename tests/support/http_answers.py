"""An HTTP server on loopback whose answers come from a function."""

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[str, Message, bytes], tuple[int, Mapping[str, str], bytes]]
"""From path, headers and body to status, headers and body."""


@contextmanager
def answering(answer: Answer, port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Answers GET and POST in threads, and yields the server's URL; port 0 lets the system choose."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, content = answer(self.path, self.headers, body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            """Writes nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        serving.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()
