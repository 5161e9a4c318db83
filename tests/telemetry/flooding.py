"""Run by the tests of the HTTP server: a server in a process of its own, or a flood of connections to one."""

import resource
import socket
import sys
import time
from collections import deque
from contextlib import suppress

from django_rmq_retry.telemetry.http import HttpServer, Response


def serve(descriptors: int) -> None:
    """Serve for at most 30 seconds, with that limit on file descriptors."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    server = HttpServer(("127.0.0.1", 0), lambda path: Response(body=path))
    sys.stdout.write(f"{server.address[1]}\n")
    sys.stdout.flush()
    over = time.monotonic() + 30
    while time.monotonic() < over:
        server.step(0.5)


def flood(port: int, open_: int) -> None:
    """Open silent connections as fast as possible for at most 30 seconds; keep that many open."""
    kept, over = deque[socket.socket](), time.monotonic() + 30
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    while time.monotonic() < over:
        one = socket.socket()
        one.setblocking(False)
        with suppress(BlockingIOError):
            one.connect(("127.0.0.1", port))
        kept.append(one)
        if len(kept) > open_:
            kept.popleft().close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        flood(int(sys.argv[2]), int(sys.argv[3]))
