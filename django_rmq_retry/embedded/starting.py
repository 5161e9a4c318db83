"""Starting the broker of a project as a process of its own, which ends by itself when nobody needs it any more."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from django_rmq_retry.core.errors import ConfigurationError
from django_rmq_retry.embedded import locating
from django_rmq_retry.embedded.engine.behaviour import V4_0, Behaviour
from django_rmq_retry.embedded.wire.broker import Broker
from django_rmq_retry.embedded.wire.serving import Server

LINGER = 5.0
"""Seconds without any connection after which a broker that was brought along ends."""
_PATIENCE, _PAUSE = 10.0, 0.05
_ROOT = Path(__file__).parents[2]


def ensure(folder: Path) -> int:
    """The port of the folder's broker, which is started where none runs."""
    try:
        return locating.port_of(folder)
    except locating.NotRunning:
        pass
    locating.prepare(folder)
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    with locating.log_of(folder).open("w") as log:
        # A session of its own: the Ctrl-C of a terminal is for the consumer, which needs its broker to end well.
        subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", f"{__package__}.starting", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            check=False,
        )
    return _awaited(folder)


def serve(
    folder: Path,
    *,
    port: int = 0,
    behaviour: Behaviour = V4_0,
    linger: float | None = None,
    begun: Callable[[Server], None] = lambda _server: None,
) -> None:
    """Be the broker of a folder until SIGTERM or SIGINT, or until nobody has been connected for so long."""
    with locating.claimed(folder) as claim:
        server = Server(Broker(behaviour), port=port, linger=linger)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        claim.publish(server.port)
        begun(server)
        server.run()


def _awaited(folder: Path) -> int:
    """Wait until a broker runs, ours or the one of somebody who was quicker."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            return locating.port_of(folder)
        except locating.NotRunning:
            time.sleep(_PAUSE)
    raise ConfigurationError(f"The embedded broker did not start; its log is {locating.log_of(folder)}.")


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    # Nobody's child: whoever brought it along may end before it does, and need not wait for it.
    if os.fork():
        sys.exit()
    with suppress(locating.AlreadyRunning):
        serve(Path(sys.argv[1]), linger=LINGER)
