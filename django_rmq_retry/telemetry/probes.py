"""The answers of ``--http``: metrics, liveness and readiness of the consuming processes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.publishing.relay_thread import RelayThread
from django_rmq_retry.telemetry.exposition import CONTENT_TYPE, exposition_text, families_of, single
from django_rmq_retry.telemetry.figures import Notice
from django_rmq_retry.telemetry.http import Response
from django_rmq_retry.telemetry.meter import SILENT_SECONDS, Board, Slot

DEAD_SECONDS = 15.0
"""Seconds without a beat after which a process does not count as alive."""
FRESH_FIGURES_SECONDS = 600.0
"""Seconds for which the figures of database and broker are shown."""
INDEX = "/metrics\n/livez\n/readyz\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """The memory in which the processes of one consumer write what ``--http`` shows."""

    board: Board
    notice: Notice
    version: str
    """The version of this package."""

    @classmethod
    def of(cls, work_queues: Sequence[WorkQueue], *, processes: int, version: str) -> "Instruments":
        return cls(board=Board(work_queues, processes=processes), notice=Notice(), version=version)


class Probes:
    """Answers for the processes of one board."""

    def __init__(self, instruments: Instruments, *, more: Callable[[], str] = str) -> None:
        self._board = instruments.board
        self._notice = instruments.notice
        self._version = instruments.version
        self._more = more
        """Returns further metrics of the process, in the text format."""

    def answer(self, path: str) -> Response:
        if path == "/metrics":
            return self._metrics()
        if path == "/livez":
            return _answered(self._silent(DEAD_SECONDS), "does not respond")
        if path == "/readyz":
            waiting = {at + 1 for at in range(self._board.processes) if not self._board.slot(at, Slot.READY)}
            return _answered(sorted(waiting | set(self._silent(SILENT_SECONDS))), "is not ready")
        if path == "/":
            return Response(body=INDEX)
        return Response(status=HTTPStatus.NOT_FOUND, body=INDEX)

    def _metrics(self) -> Response:
        alive = self._board.processes - len(self._silent(SILENT_SECONDS))
        own = families_of(self._board, alive=alive, version=self._version)
        text = exposition_text(own) + self._notice.read(newest=FRESH_FIGURES_SECONDS) + self._more()
        return Response(body=text, content_type=CONTENT_TYPE)

    def _silent(self, seconds: float) -> list[int]:
        return self._board.silent(seconds, now=time.monotonic())


class RelayProbes:
    """Answers for a process that only relays the outbox."""

    def __init__(self, relaying: RelayThread, notice: Notice) -> None:
        self._relaying = relaying
        self._notice = notice

    def answer(self, path: str) -> Response:
        if path == "/metrics":
            about = "Messages that this relay has sent from the outbox."
            own = exposition_text([single("relayed_total", about, self._relaying.sent)])
            return Response(body=own + self._notice.read(newest=FRESH_FIGURES_SECONDS), content_type=CONTENT_TYPE)
        if path in ("/livez", "/readyz"):
            trouble = self._relaying.trouble if path == "/readyz" else ""
            why = trouble if self._relaying.alive else "the relay has ended"
            status = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
            return Response(status=status, body=f"{why or 'ok'}\n")
        return Response(status=HTTPStatus.OK if path == "/" else HTTPStatus.NOT_FOUND, body=INDEX)


def _answered(processes: list[int], what: str) -> Response:
    if not processes:
        return Response(body="ok\n")
    named = ", ".join(map(str, processes))
    return Response(status=HTTPStatus.SERVICE_UNAVAILABLE, body=f"process {named} {what}\n")
