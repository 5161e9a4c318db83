"""The page of consuming processes: their state and the messages that they have in flight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from django_rmq_retry import database_clock
from django_rmq_retry.admin import broker_look
from django_rmq_retry.admin.pages import Pages, refusal
from django_rmq_retry.conf import settings
from django_rmq_retry.health import processes
from django_rmq_retry.health.look import merged
from django_rmq_retry.health.problems import Queues, in_processes, last_signs
from django_rmq_retry.health.processes import Process, ProcessState
from django_rmq_retry.health.rules import Problem, Severity
from django_rmq_retry.models import ConsumerProcess
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.wording import span

BADGES: Mapping[ProcessState, tuple[str, str, Any]] = {
    ProcessState.RUNNING: ("processed", "✓", pgettext_lazy("consumer", "running")),
    ProcessState.STOPPING: ("requeued", "…", pgettext_lazy("consumer", "stopping")),
    ProcessState.NO_BROKER: ("on-hold", "!", pgettext_lazy("consumer", "no broker")),
    ProcessState.SILENT: ("on-hold", "!", gettext_lazy("no heartbeat for %(span)s")),
    ProcessState.VANISHED: ("parked", "✕", pgettext_lazy("consumer", "vanished")),
    ProcessState.REPLACED: ("discarded", "↻", pgettext_lazy("consumer", "replaced")),
    ProcessState.TAKEN_OVER: ("discarded", "↻", pgettext_lazy("consumer", "taken over")),
}

LATE = ("on-hold", "!", pgettext_lazy("consumer", "handler hangs"))
"""The badge of a process with a handler beyond its deadline, or that blocks the others: green would hide it."""
ENDED = ("parked", "✕", pgettext_lazy("consumer", "ended"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    process: Process
    kind: str
    sign: str
    label: Any
    lost: str
    """The queues whose messages in flight are not delivered again, because of ``ack="auto"``."""

    @classmethod
    def of(cls, process: Process) -> "ProcessRow":
        ill = process.state is ProcessState.RUNNING and (process.late or process.blocked)
        kind, sign, label = ENDED if process.ended else LATE if ill else BADGES[process.state]
        lost = dict.fromkeys(one.queue for one in process.in_flight if one.auto_ack)
        return cls(
            process=process,
            kind=kind,
            sign=sign,
            label=str(label) % {"span": span(process.unheard)},
            lost=", ".join(lost),
        )

    @property
    def replaced(self) -> bool:
        """True if others do its work, so that its row is grey."""
        return self.process.settled_by_others


def problems_of(rows: Sequence[ConsumerProcess]) -> list[tuple[Problem, str]]:
    """Return what is wrong with the processes, each with the command that repairs it; no query is needed for it."""
    now = database_clock.reckoned(records_alias())
    last = last_signs(rows, now)
    seen = broker_look.glimpse() if last else None
    # If none is alive, the broker knows which queues stand still.
    queues = Queues(levels=(seen.last or seen).levels if seen else ())
    found = merged(list(in_processes(rows, now)), queues, last)
    command = "manage.py rmq_consume"
    shown = sorted((one for one in found if one.severity >= Severity.WARNING), key=lambda one: one.harm)
    return [(one, command if last else "") for one in shown]


@admin.register(ConsumerProcess)
class ConsumerProcessAdmin(Pages):
    sees = "view_status"
    one_page = True

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponse:
        known = processes.processes()
        rows = [ProcessRow.of(one) for one in known]
        return self.page(
            request,
            "consumerprocess/consumers.html",
            part="parts/consumers.html",
            title=_("Consumers"),
            rows=rows,
            problems=problems_of([one.row for one in known]),
            records=settings().records,
            finds=not refusal(request, "view"),
            most=processes.MOST_LISTED_PROCESSES if len(rows) == processes.MOST_LISTED_PROCESSES else 0,
        )
