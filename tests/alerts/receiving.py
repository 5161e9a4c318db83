"""A real HTTP server that keeps what a webhook gets."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = "0123456789abcdef-signs"
PATH = "/hooks/T0K3N-IN-THE-PATH"


@dataclass(slots=True, kw_only=True)
class Receiver:
    url: str = ""
    status: int = 200
    location: str = ""
    answers: Callable[[], object] = lambda: None
    """Called before each answer."""
    got: list[tuple[Message, bytes]] = field(default_factory=list)


@contextmanager
def receiver() -> Iterator[Receiver]:
    receiving = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiving.answers()
            receiving.got.append((self.headers, body))
            self.send_response(receiving.status)
            if receiving.location:
                self.send_header("Location", receiving.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    receiving.url = f"http://127.0.0.1:{server.server_port}{PATH}"
    try:
        yield receiving
    finally:
        server.shutdown()
        server.server_close()
