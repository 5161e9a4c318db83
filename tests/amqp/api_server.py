"""A server in place of the management API."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from django_rmq_retry.amqp import Secret
from django_rmq_retry.amqp.management_api import Inspector

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def api(answer: Answer) -> Iterator[tuple[Inspector, list[dict[str, str]]]]:
    """A server that answers so, and the headers of what it was asked."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(dict(self.headers))
            answer(self)

        def log_message(self, *_words: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield Inspector(url=Secret(f"http://app:sesame@127.0.0.1:{server.server_port}"), timeout=0.3), asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
