"""The embedded broker as a process, which ends when no client needs it."""

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
from django_rmq_retry.embedded.wire.broker import Broker
from django_rmq_retry.embedded.wire.server import Server
from django_rmq_retry.errors import ConfigurationError

log = logging.getLogger("django_rmq_retry")

LINGER = 5.0
"""Seconds without any connection after which a broker that was brought along ends."""
_PATIENCE, _START_PAUSE = 10.0, 0.05
_ROOT = Path(__file__).parents[2]


def ensure(folder: Path) -> int:
    """The port of the folder's broker, which is started where none runs."""
    try:
        return place.port_of(folder)
    except place.NotRunning:
        pass
    place.prepare(folder)
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    with place.log_of(folder).open("w") as output:
        # A session of its own: the Ctrl-C of a terminal is for the consumer, which needs its broker to end well.
        started = subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", f"{__package__}.process", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            check=False,
        )
    return _awaited(folder, patience=0.0 if started.returncode else _PATIENCE)


class Keeper:
    """Asked for the port before each connect, it brings a broker back that had been brought along."""

    def __init__(self) -> None:
        self._brought = False

    def port(self, folder: Path) -> int:
        """The port; NotRunning where somebody runs the broker alone, for that one is theirs to start."""
        try:
            found = place.place_of(folder)
        except place.NotRunning:
            if not self._brought:
                raise
            log.warning("The embedded broker is gone; it is started again", extra={"event": "broker restarted"})
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
    """Be the broker of a folder until SIGTERM or SIGINT, or until nobody has been connected for so long."""
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


def _awaited(folder: Path, *, patience: float) -> int:
    """Wait until a broker runs, ours or the one of somebody who was quicker."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return place.port_of(folder)
        except place.NotRunning:
            if time.monotonic() >= deadline:
                break
        time.sleep(_START_PAUSE)
    said = place.log_of(folder)
    words = said.read_text(errors="replace").strip().rpartition("\n")[2]
    raise ConfigurationError(f"The embedded broker did not start: {words or 'it said nothing'} (its log is {said})")


def _detached(folder: Path) -> None:
    """Be nobody's child: whoever brought the broker along may end before it does, and need not wait for it."""
    told, telling = os.pipe()
    if os.fork():
        os.close(telling)
        # Nothing comes where the broker ended before it began.
        sys.exit(0 if os.read(told, 1) else 1)
    os.close(told)
    try:
        serve(folder, linger=LINGER, begun=lambda _server: _say(telling))
    except place.AlreadyRunning:
        _say(telling)
    except ConfigurationError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence says it all
        sys.exit(1)


def _say(telling: int) -> None:
    os.write(telling, b"1")
    os.close(telling)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    _detached(Path(sys.argv[1]))
