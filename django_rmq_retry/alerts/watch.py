"""The thread that looks for findings and sends alerts, in the one process that holds the lease."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

from django.db.models import Q, QuerySet
from django.utils import translation

from django_rmq_retry import database_clock
from django_rmq_retry.alerts.found import AlertFindings, Unseen, find
from django_rmq_retry.alerts.ledger import Alert, Ledger
from django_rmq_retry.alerts.ways import TimeLimitedWay, ways
from django_rmq_retry.conf import Alerts, settings
from django_rmq_retry.messages.texts import COLUMN_BYTES, one_line, short
from django_rmq_retry.models import AlertWatch
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.recurring import LastingFailures, Recurring, thread_name

log = logging.getLogger("django_rmq_retry")

ALERT_LOOK_SECONDS = 15.0
"""Seconds between two looks at what is wrong, and between two tries for the lease."""
ALERTS_LEASE = timedelta(seconds=60)
"""Longer than a look and a try together take; it is renewed before each."""
STOP_SECONDS = 1.0
NAME = "alerts"


class LeaseLost(Exception):
    """Another process holds the lease now."""


class AlertWatcher(Recurring):
    """Looks and sends beside a consumer or a relay: no mail server and no webhook can delay more than this thread."""

    def __init__(
        self,
        *,
        with_connections: Callable[[], AbstractContextManager[object]] = nullcontext,
        look: Callable[[Alerts], AlertFindings] = find,
        out: Sequence[TimeLimitedWay] | None = None,
    ) -> None:
        super().__init__("rmq-alerts")
        self._with_connections = with_connections
        self._look = look
        self._ways = [TimeLimitedWay(way) for way in ways(settings())] if out is None else out
        self._failures = LastingFailures()
        self._name = ""

    def stop(self, timeout: float | None = STOP_SECONDS) -> bool:
        return super().stop(timeout)

    def turn(self) -> float:
        began = time.monotonic()
        try:
            with self._with_connections():
                self.look()
            self._failures.ends()
        except LeaseLost:
            pass
        except Unseen as unseen:
            self._complain(str(unseen))
        except Exception as error:  # noqa: BLE001 - the thread lives as long as its process
            self._complain(one_line(error))
        return max(0.0, ALERT_LOOK_SECONDS - (time.monotonic() - began))

    def at_end(self) -> None:
        """Leave the lease to the next process, which need not wait for its end."""
        if self._name:
            self._mine().update(leased_until=None)

    def look(self) -> None:
        """Look once and send what is due, if this process has or gets the lease."""
        self._name = self._name or short(thread_name(NAME), COLUMN_BYTES)
        row = self._held()
        if row is None:
            return
        # In the language of commands and logs: only a page knows its reader's.
        with translation.override(None):
            found = self._look(settings().alerts)
        ledgers = {
            one.way.name: Ledger(row.told.get(one.way.name, {}), window=settings().alerts.window) for one in self._ways
        }
        now = self._now()
        due = [(one, ledgers[one.way.name], ledgers[one.way.name].due(found, now)) for one in self._ways]
        # Before the first try, so that a process that takes over knows the same findings by the same ids.
        self._record(ledgers)
        for way, ledger, alerts in due:
            for alert in alerts:
                if self.stopping.is_set():
                    return
                sent = self._send(way, ledger, alert)
                self._record(ledgers)
                if not sent:
                    # The others have their turn at the next look, so that a silent server costs one deadline.
                    break

    def _send(self, way: TimeLimitedWay, ledger: Ledger, alert: Alert) -> bool:
        why = way.send(alert)
        if not why:
            ledger.sent(alert, self._now())
            self._failures.ends(way.way.name)
            log.info("Alert: %s %s", alert.finding.code, alert.event, extra={"event": "alert_sent"})
            return True
        given_up = ledger.failed(alert, self._now())
        if self._failures.begins(way.way.name):
            text = "Alerts by %s to %s cannot be sent; they are tried again: %s"
            log.warning(text, way.way.name, way.way.to, why, extra={"event": "alerts"})
        if given_up:
            text = "The alert by %s was given up: %s %s"
            log.error(text, way.way.name, alert.finding.code, alert.event, extra={"event": "alert_lost"})
        return False

    def _complain(self, why: str) -> None:
        if self._failures.begins():
            text = "No alert can be sent, because what is wrong cannot be found out; it is tried again: %s"
            log.warning(text, short(why, 200), extra={"event": "alerts"})

    def _held(self) -> AlertWatch | None:
        """Take or renew the lease; return the row, or None if another process has it."""
        now = database_clock.now(records_alias())
        free = Q(leased_until__isnull=True) | Q(leased_until__lt=now) | Q(holder=self._name)
        taken = {"holder": self._name, "leased_until": now + ALERTS_LEASE}
        if not _rows().filter(free).update(**taken):
            _row, made = _rows().get_or_create(name=NAME, defaults=taken)
            if not made:
                return None
        return self._mine().first()

    def _record(self, ledgers: dict[str, Ledger]) -> None:
        told = {name: ledger.rows() for name, ledger in ledgers.items()}
        if not self._mine().update(told=told, leased_until=database_clock.now(records_alias()) + ALERTS_LEASE):
            raise LeaseLost

    def _mine(self) -> "QuerySet[AlertWatch]":
        return _rows().filter(holder=self._name)

    @staticmethod
    def _now() -> float:
        return database_clock.now(records_alias()).timestamp()


def _rows() -> "QuerySet[AlertWatch]":
    return AlertWatch.objects.using(records_alias()).filter(name=NAME)
