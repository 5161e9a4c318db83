"""The page of consuming processes: their state and the messages that they have in flight."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from django_rmq_retry.admin.pages import Pages, refusal
from django_rmq_retry.conf import settings
from django_rmq_retry.health import processes
from django_rmq_retry.health.processes import InFlight, Process, ProcessState
from django_rmq_retry.models import ConsumerProcess, ParkedMessage, State
from django_rmq_retry.wording import span

BADGES: Mapping[ProcessState, tuple[str, str, Any]] = {
    ProcessState.RUNNING: ("processed", "✓", pgettext_lazy("consumer", "running")),
    ProcessState.STOPPING: ("requeued", "…", pgettext_lazy("consumer", "stopping")),
    ProcessState.NO_BROKER: ("on-hold", "!", pgettext_lazy("consumer", "no broker")),
    ProcessState.SILENT: ("on-hold", "!", gettext_lazy("no heartbeat for %(span)s")),
    ProcessState.VANISHED: ("parked", "✕", pgettext_lazy("consumer", "vanished")),
    ProcessState.REPLACED: ("discarded", "↻", pgettext_lazy("consumer", "replaced")),
}
MOST_LOOKED_UP = 200
"""The most messages of dead processes whose records a page looks up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    process: Process
    kind: str
    sign: str
    label: Any
    lost: str
    """The queues whose messages in flight are not delivered again, because of ``ack="auto"``."""
    in_flight: Sequence[tuple[InFlight, ParkedMessage | None]]
    """Each with its record, if its process is not heard of any more and the message was parked at some time."""

    @classmethod
    def of(cls, process: Process, records: Mapping[tuple[str, str], ParkedMessage]) -> "ProcessRow":
        kind, sign, label = BADGES[process.state]
        lost = dict.fromkeys(one.queue for one in process.in_flight if one.auto_ack)
        return cls(
            process=process,
            kind=kind,
            sign=sign,
            label=str(label) % {"span": span(process.unheard)},
            lost=", ".join(lost),
            in_flight=[(one, records.get((one.queue, one.message_id))) for one in process.in_flight],
        )

    @property
    def replaced(self) -> bool:
        return self.process.state is ProcessState.REPLACED

    @property
    def settled(self) -> bool:
        """True if nothing is left to do for its messages: each is known to have been processed since."""
        return bool(self.in_flight) and all(_processed_since(one, record) for one, record in self.in_flight)


@admin.register(ConsumerProcess)
class ConsumerProcessAdmin(Pages):
    sees = "view_status"
    one_page = True

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponse:
        found = processes.processes()
        records = _records(one for process in found if not process.heard for one in process.in_flight)
        # Who works comes first: of the others, the live status has those that need somebody.
        rows = [ProcessRow.of(one, records) for one in sorted(found, key=lambda one: one.vanished)]
        return self.page(
            request,
            "consumerprocess/consumers.html",
            part="parts/consumers.html",
            title=_("Consumers"),
            rows=rows,
            records=settings().records,
            finds=not refusal(request, "view"),
            most=processes.MOST_LISTED_PROCESSES if len(rows) == processes.MOST_LISTED_PROCESSES else 0,
        )


def _processed_since(one: InFlight, record: ParkedMessage | None) -> bool:
    if record is None or record.state != State.PROCESSED or record.succeeded_at is None or one.since is None:
        return False
    return record.succeeded_at >= one.since


def _records(messages: Iterable[InFlight]) -> dict[tuple[str, str], ParkedMessage]:
    """Return the latest record of each message, by its queue and id; one query, and none without messages."""
    named = list(islice((one for one in messages if one.message_id), MOST_LOOKED_UP))
    if not named:
        return {}
    rows = ParkedMessage.objects.filter(message_id__in={one.message_id for one in named})
    known = rows.only("pk", "queue", "message_id", "state", "succeeded_at").order_by("parked_at", "pk")[
        : MOST_LOOKED_UP * 5
    ]
    return {(row.queue, row.message_id): row for row in known}
