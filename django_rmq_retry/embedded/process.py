"""The embedded broker as a process, which ends when no client is connected."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from django_rmq_retry.embedded import place
from django_rmq_retry.embedded.engine.behaviour import V4_0, Behaviour
from django_rmq_retry.embedded.wire.client import Broker
from django_rmq_retry.embedded.wire.server import Server
from django_rmq_retry.errors import ConfigurationError

log = logging.getLogger("django_rmq_retry")

LINGER = 5.0
"""Seconds without a connection after which a broker that a consumer started ends."""
_PATIENCE, _START_PAUSE = 10.0, 0.05
_ROOT = Path(__file__).parents[2]


def ensure(folder: Path) -> int:
    """Return the port of the folder's broker; start one if none runs."""
    try:
        return place.port_of(folder)
    except place.NotRunning:
        pass
    place.prepare(folder)
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    with place.log_of(folder).open("w") as output:
        # A session of its own: Ctrl-C in a terminal stops the consumer, which needs its broker until it has ended.
        started = subprocess.run(  # noqa: S603 - the package's own module
            [sys.executable, "-m", f"{__package__}.process", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            check=False,
        )
    return _port_when_ready(folder, patience=0.0 if started.returncode else _PATIENCE)


class Keeper:
    """Returns the port before each connect, and restarts a broker that a consumer had started."""

    def __init__(self) -> None:
        self._brought = False

    def port(self, folder: Path) -> int:
        """Return the port, or raise NotRunning if an operator runs the broker: only the operator restarts it."""
        try:
            found = place.place_of(folder)
        except place.NotRunning:
            if not self._brought:
                raise
            log.warning("The embedded broker has ended. Starting it again", extra={"event": "broker_restarted"})
            return ensure(folder)
        self._brought = found.brought
        return found.port


def serve(
    folder: Path,
    *,
    port: int = 0,
    behaviour: Behaviour = V4_0,
    durable: bool = True,
    linger: float | None = None,
    begun: Callable[[Server], None] = lambda _server: None,
) -> None:
    """Be the folder's broker until SIGTERM or SIGINT, or until no client has been connected for `linger` seconds."""
    with place.claimed(folder) as claim:
        broker = Broker(behaviour, file=place.file_of(folder) if durable else None)
        try:
            server = Server(broker, port=port, linger=linger)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: server.stop())
            claim.publish(server.port, brought=linger is not None)
            begun(server)
            server.run()
        finally:
            broker.close()


def _port_when_ready(folder: Path, *, patience: float) -> int:
    """Wait until a broker runs, whichever process started it."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return place.port_of(folder)
        except place.NotRunning:
            if time.monotonic() >= deadline:
                break
        time.sleep(_START_PAUSE)
    output = place.log_of(folder)
    words = output.read_text(errors="replace").strip().rpartition("\n")[2]
    raise ConfigurationError(f"The embedded broker did not start: {words or 'its log is empty'} (log: {output})")


def _run_detached(folder: Path) -> None:
    """Run the broker detached: the process that started it may end first and need not wait for it."""
    readable, writable = os.pipe()
    if os.fork():
        os.close(writable)
        # The pipe stays empty if the broker ended before it was ready.
        sys.exit(0 if os.read(readable, 1) else 1)
    os.close(readable)
    try:
        serve(folder, linger=LINGER, begun=lambda _server: _signal_ready(writable))
    except place.AlreadyRunning:
        _signal_ready(writable)
    except ConfigurationError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is complete
        sys.exit(1)


def _signal_ready(writable: int) -> None:
    os.write(writable, b"1")
    os.close(writable)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    _run_detached(Path(sys.argv[1]))
