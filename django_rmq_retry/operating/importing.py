"""Takes messages from an export into this database, parked. Nothing is published; what is known stays one record."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from django_rmq_retry import registry
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.core.homes import homes_of
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.properties import Properties, encode_properties
from django_rmq_retry.core.settling import KEPT_RAW
from django_rmq_retry.core.stamps import PREFIX, Stamp
from django_rmq_retry.core.verdict import short
from django_rmq_retry.models import Verb
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.auditing import note
from django_rmq_retry.operating.exporting import SCHEMA
from django_rmq_retry.records.parker import Parker

BATCH = 200
MOST_REFUSED = 100


@dataclass(slots=True, kw_only=True)
class Imported:
    """How it went; of what was refused, the first lines with why."""

    stored: int = 0
    refused: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)

    def refuse(self, line: int, why: str) -> None:
        self.refused += 1
        if len(self.problems) < MOST_REFUSED:
            self.problems.append((line, why))


def import_lines(lines: Iterable[str | bytes], actor: Actor, *, reason: str = "") -> Imported:
    """Park what stands in the lines of a whole export; a line that cannot be used is passed over and told."""
    done = Imported()
    parker = Parker(homes_of(registry.intakes()))
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    while batch := list(islice(numbered, BATCH)):
        arrivals = [(number, read) for number, line in batch if (read := _read(number, line, done)) is not None]
        stored = parker.store([delivery for _number, delivery in arrivals])
        for (number, _delivery), one in zip(arrivals, stored, strict=True):
            if one.problem:
                done.refuse(number, one.problem)
            else:
                done.stored += 1
        facts = {"lines": [batch[0][0], batch[-1][0]]}
        note(actor, Verb.IMPORT, reason=reason, count=len(arrivals), facts=facts)
    return done


def _read(number: int, line: str | bytes, done: Imported) -> Delivery | None:
    try:
        return _delivery(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error, RecursionError) as error:
        done.refuse(number, str(error) if type(error) is _Unfit else _("It is no line of an export."))
        return None


class _Unfit(ValueError):
    """A line that is one of an export, and still of no use."""


def _delivery(row: Mapping[str, Any]) -> Delivery:
    """The message as it would lie in a parked queue."""
    if row["schema"] != SCHEMA:
        raise _Unfit(_("Its schema is not %(schema)s.") % {"schema": SCHEMA})
    if "body_base64" not in row:
        raise _Unfit(_("It was exported without its exact contents."))
    body, raw = (base64.b64decode(row[f"{name}_base64"], validate=True) for name in ("body", "properties"))
    stamp = Stamp(
        attempts=int(row["attempts"]),
        since=_milliseconds(row["failed_at"]),
        exchange=str(row["exchange"]),
        routing_key=str(row["routing_key"]),
        queue=str(row["queue"]),
        summary=str(row["summary"]),
    )
    group = row["group"]
    told = {
        **{name: row[name] for name in ("reason", "detail", "error", "handler")},
        "message": row["error_text"],
        "fingerprint": group["fingerprint"],
        "culprit": group["culprit"],
    }
    named: dict[str, object] = {PREFIX + name: short(text, 10_000) for name, text in told.items() if text}
    headers = {**stamp.headers(), **named, PREFIX + "parked-at": _milliseconds(row["parked_at"]), KEPT_RAW: raw}
    # Redelivered: what is known already is not counted as having come once more.
    return Delivery(
        queue=str(row["parked_in"]),
        body=body,
        raw=encode_properties(Properties(headers=Headers.of(headers))),
        redelivered=True,
    )


def _milliseconds(text: str | None) -> int:
    at = parse_datetime(text) if text else None
    return 0 if at is None else int(at.timestamp() * 1000)
