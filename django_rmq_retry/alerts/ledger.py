"""Decides which alerts are due on one way, by what was sent on it before. It knows no clock and no network."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from django_rmq_retry.alerts.found import AlertFinding, AlertFindings
from django_rmq_retry.health.rules import Severity

LASTS_SECONDS = 20.0
"""Seconds for which a finding must last before it is told: a restart of the consumers is none."""
TIMES_WORSE = 10
"""A finding with so many times the messages that were told is worse. By this factor a sentence means something else;
at a smaller one, an outage would send an alert in every window without news."""
MOST_NAMED = 3
"""New causes that an alert names."""
MOST_TRIES = 5
FIRST_WAIT_SECONDS = 10.0
"""Seconds before the second try; each later one waits twice as long."""


class AlertEvent(StrEnum):
    BEGINS = "begins"
    WORSENS = "worsens"
    ENDS = "ends"
    TEST = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    event: AlertEvent
    id: str
    """The same for each try of one alert, so that a receiver recognizes one that comes twice."""
    finding: AlertFinding


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """What one way knows of one finding; times are seconds of the epoch."""

    code: str
    subject: str
    severity: int
    count: int
    text: str
    of_queues: bool
    seen_at: float
    causes: list[str] = field(default_factory=list)
    """Short hashes of the causes that were told, because a row has room for thousands of these."""
    told_at: float = 0.0
    """The time of the last alert; 0 if there was none."""
    over: bool = False
    """True if the end was told. The entry stays until the window ends, so that a finding that flickers is not told."""
    tries: int = 0
    next_at: float = 0.0

    def finding(self, key: str) -> AlertFinding:
        return AlertFinding(
            key=key,
            code=self.code,
            subject=self.subject,
            severity=Severity(self.severity),
            count=self.count,
            text=self.text,
        )


class Ledger:
    """The entries of one way, by the keys of findings."""

    def __init__(self, rows: Mapping[str, Mapping[str, Any]], *, window: float) -> None:
        # A newer version, which runs beside this one during a deployment, may know more.
        known = LedgerEntry.__dataclass_fields__
        self._entries = {
            key: LedgerEntry(**{name: value for name, value in row.items() if name in known})
            for key, row in rows.items()
        }
        self._window = window

    def rows(self) -> dict[str, dict[str, Any]]:
        return {key: asdict(entry) for key, entry in self._entries.items()}

    def due(self, found: AlertFindings, now: float) -> list[Alert]:
        """Note what was found, and return the alerts that are due: at most one of a finding in one window."""
        return [*self._of_found(found, now), *self._of_gone(found, now)]

    def _of_found(self, found: AlertFindings, now: float) -> Iterator[Alert]:
        for finding in found.findings:
            entry = self._entries.get(finding.key)
            if entry is None:
                self._entries[finding.key] = _entry(finding, seen_at=now)
                continue
            if entry.over and now >= entry.told_at + self._window:
                entry = self._entries[finding.key] = _entry(finding, seen_at=now)
            event = _event(entry, finding)
            if event and self._free(entry, now) and now >= entry.seen_at + LASTS_SECONDS:
                yield _alert(event, finding, entry)

    def _of_gone(self, found: AlertFindings, now: float) -> Iterator[Alert]:
        lasting = {finding.key for finding in found.findings} | found.following
        for key, entry in list(self._entries.items()):
            if key in lasting or (found.blind and entry.of_queues):
                continue
            if not entry.told_at or (entry.over and now >= entry.told_at + self._window):
                del self._entries[key]
            elif not entry.over and self._free(entry, now):
                yield _alert(AlertEvent.ENDS, entry.finding(key), entry)

    def _free(self, entry: LedgerEntry, now: float) -> bool:
        return now >= max(entry.next_at, entry.told_at + self._window if entry.told_at else 0.0)

    def sent(self, alert: Alert, now: float) -> None:
        finding, before = alert.finding, self._entries[alert.finding.key]
        if alert.event is AlertEvent.ENDS:
            self._entries[finding.key] = replace(before, told_at=now, over=True, tries=0, next_at=0.0)
        else:
            self._entries[finding.key] = _entry(finding, seen_at=before.seen_at, told_at=now)

    def failed(self, alert: Alert, now: float) -> bool:
        """Note a failure; return True if it was the last try: the finding is told again in the next window."""
        key = alert.finding.key
        before = self._entries[key]
        if before.tries + 1 < MOST_TRIES:
            wait = FIRST_WAIT_SECONDS * 2**before.tries
            self._entries[key] = replace(before, tries=before.tries + 1, next_at=now + wait)
            return False
        if alert.event is AlertEvent.ENDS:
            del self._entries[key]
        else:
            self._entries[key] = replace(before, tries=0, next_at=now + self._window)
        return True


def _entry(finding: AlertFinding, *, seen_at: float, told_at: float = 0.0) -> LedgerEntry:
    return LedgerEntry(
        code=finding.code,
        subject=finding.subject,
        severity=finding.severity,
        count=finding.count,
        text=finding.text,
        of_queues=finding.of_queues,
        causes=[_short(cause) for cause in finding.causes],
        seen_at=seen_at,
        told_at=told_at,
    )


def _event(entry: LedgerEntry, finding: AlertFinding) -> AlertEvent | None:
    """Return what a finding that lasts has to tell, if anything."""
    if entry.over:
        return None
    if not entry.told_at:
        return AlertEvent.BEGINS
    worse = finding.severity > entry.severity or finding.count >= TIMES_WORSE * max(entry.count, 1)
    return AlertEvent.WORSENS if worse or _new_causes(entry, finding) else None


def _new_causes(entry: LedgerEntry, finding: AlertFinding) -> list[str]:
    known = set(entry.causes)
    return [cause for cause in finding.causes if _short(cause) not in known]


def _short(cause: str) -> str:
    return hashlib.sha256(cause.encode()).hexdigest()[:12]


def _alert(event: AlertEvent, finding: AlertFinding, entry: LedgerEntry) -> Alert:
    if event is AlertEvent.WORSENS and (new := _new_causes(entry, finding)):
        more = f" and {len(new) - MOST_NAMED} more" if len(new) > MOST_NAMED else ""
        finding = replace(finding, why=f"New: {', '.join(new[:MOST_NAMED])}{more}. {finding.why}")
    facts = "\0".join([finding.key, event, repr(entry.seen_at), repr(entry.told_at)])
    return Alert(event=event, id=hashlib.sha256(facts.encode()).hexdigest()[:32], finding=finding)
