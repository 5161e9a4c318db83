"""Read the results at the end of a run, and check during the run that no history row changes."""

import json
from collections.abc import Iterable, Iterator, Mapping

from django.apps import apps
from django.db import connection, models

from tests.chaos import ledger
from tests.chaos.books import Books, Record, read
from tests.chaos.lanes import Lane
from tests.chaos.ledger import now
from tests.chaos.naming import record_name, task_name
from tests.chaos.stage import Stage

SEEN_AT_MOST = 20_000


class Historian:
    """Keeps a digest of each history row that it has read."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], str] = {}

    def look(self) -> None:
        """Read the rows that are new since the last call."""
        connection.close()
        for table in TABLES:
            known = sum(name == table for name, _ in self._seen)
            if known < SEEN_AT_MOST:
                last = max((pk for name, pk in self._seen if name == table), default=0)
                self._seen.update(self._rows(table, f"id > {last} ORDER BY id LIMIT {SEEN_AT_MOST - known}"))

    def vanished(self) -> list[str]:
        """Return the rows that were deleted or changed."""
        there = {key: digest for table in TABLES for key, digest in self._rows(table, "true").items()}
        return [
            f"{table} {pk} {'is gone' if (table, pk) not in there else 'says something else'}"
            for (table, pk), digest in self._seen.items()
            if there.get((table, pk)) != digest
        ]

    def _rows(self, table: str, where: str) -> dict[tuple[str, int], str]:
        with connection.cursor() as cursor:
            whole = f"(to_jsonb(t) - '{NOTED_LATER}')::text"
            if connection.vendor == "mysql":
                described = connection.introspection.get_table_description(cursor, table)
                columns = [one.name for one in described if one.name != NOTED_LATER]
                values = ", ".join(f"IFNULL(HEX(t.`{name}`), '-')" for name in columns)
                whole = f"CONCAT_WS('|', {values})"
            cursor.execute(f"SELECT t.id, md5({whole}) FROM {table} t WHERE {where}")  # noqa: S608 - our own words
            return {(table, pk): digest for pk, digest in cursor.fetchall()}


TABLES = ("rmq_retry_attempt", "rmq_retry_operatoraction")
NOTED_LATER = "interrupted"
"""The column of an attempt that is noted in its row once an outage has kept its message from being parked."""


def books(stage: Stage, lanes: Mapping[str, Lane], historian: Historian, *, survivors: Iterable[str] = ()) -> Books:
    """Return the results from ledger, database and broker; the survivors are writers that were stopped in the end."""
    from django_rmq_retry.models import ParkedMessage  # noqa: PLC0415 - Django must be set up first
    from django_rmq_retry.parked.audit import verify  # noqa: PLC0415 - as above
    from tests.chaos.project.models import Effect  # noqa: PLC0415 - as above

    found = read(stage.folder, lanes)
    found.effects = list(Effect.objects.order_by("pk").values_list("name", flat=True))
    for row in ParkedMessage.objects.iterator():
        name = record_name(row.queue, row.message_id, bytes(row.body))
        found.records[name] = Record(state=row.state, attempts=row.attempts, reason=row.reason)
    waiting = model("BlockedMessage")._default_manager.filter(block__parked=True).values_list("body", flat=True)
    found.waiting = {json.loads(bytes(body))["id"] for body in waiting}
    found.vanished = [*historian.vanished(), *verify()]
    found.results = dict(results()) if any(lane.results for lane in lanes.values()) else {}
    found.kept = {name for writer in survivors for name in ledger.names(stage.folder, ledger.RAN, writer)}
    found.exits = stage.fleet.exits()
    found.left = left(stage)
    return found


def results() -> Iterator[tuple[str, str]]:
    """Yield the name of each task with the status of its result, as the project reads it."""
    from django_rmq_retry.models import StoredResult  # noqa: PLC0415 - Django must be set up first
    from django_rmq_retry.tasks.api import task_backends  # noqa: PLC0415 - as above
    from tests.chaos.project import tasks  # noqa: F401, PLC0415 - as above

    for pk, body in StoredResult.objects.values_list("pk", "body").iterator():
        yield task_name(bytes(body)), str(task_backends["default"].get_result(pk).status)


def left(stage: Stage) -> dict[str, int]:
    """Return the messages in queues and the rows that wait to be sent, with their counts."""
    return {**stage.depths(), **{name: count for name, count in waiting_rows().items() if count}}


def waiting_rows() -> dict[str, int]:
    """Return outbox rows, and messages that wait behind one that needs no operator."""
    # A nemesis may have closed this connection as well since its last use.
    connection.close()
    outbox = model("OutboxMessage")._default_manager.filter(failed_at=None).count()
    waiting = model("BlockedMessage")._default_manager.filter(block__parked=False).count()
    return {"the outbox": outbox, "keys that wait": waiting}


def model(name: str) -> type[models.Model]:
    return apps.get_model("rmq_retry", name)


def settle(stage: Stage, seconds: float, *, looks: int = 10) -> float | None:
    """Wait until all queues stay empty for longer than statistics lag; return the seconds, None at the timeout."""
    began, quiet = now(), 0
    while (now() - began) < seconds * 1000:
        try:
            quiet = 0 if left(stage) else quiet + 1
        except OSError:
            quiet = 0
        if quiet == looks:
            return (now() - began) / 1000
        stage.rest(0.6)
    return None
