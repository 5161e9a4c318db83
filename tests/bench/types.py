"""What the type in a handler's annotation costs a message: a five-field dataclass, beside the same body as a dict."""

import timeit
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from django_rmq_retry import Delivery, Json
from django_rmq_retry.handlers.typed import codec_for
from tests.bench.report import Finding, table

NAME = "types"
MOST = 3.0
"""Microseconds that the type adds to a message that is published, and to one that is consumed."""
REPEATS, CALLS = 2000, 100


@dataclass
class Payment:
    id: int
    amount: Decimal
    order: UUID
    at: datetime
    payer: str


PAYMENT = Payment(
    id=7,
    amount=Decimal("9.90"),
    order=UUID("5b2a6a3e-2b2c-4a52-9d0e-0c7a3b7e4a11"),
    at=datetime(2026, 11, 28, 13, 5, tzinfo=UTC),
    payer="Ada",
)


def charge(message: Delivery[Payment]) -> None:
    """Do nothing: only its annotation counts here."""


def types(*, share: int = 1) -> list[Finding]:
    """Measure and print; return a finding for each limit."""
    plain = Json()
    typed = codec_for(charge, plain, "charge")
    body = typed.encode(PAYMENT)
    print(f"\nthe type of a handler's messages, by msgspec: five fields, {len(body)} bytes\n")
    pairs = {"consume": (lambda: plain.decode(body), lambda: typed.decode(body))}
    pairs["publish"] = (lambda: plain.encode(PAYMENT.__dict__), lambda: typed.encode(PAYMENT))
    rows = [("", "a dict", "the type", "added")]
    added = {}
    for name, pair in pairs.items():
        one, other = quickest(pair, share=share)
        added[name] = other - one
        rows.append((name, f"{one:.2f} µs", f"{other:.2f} µs", f"{other - one:.2f} µs"))
    table(rows)
    return [
        Finding(what=f"the type, {name}: {cost:.2f} µs, limit {MOST:g}", met=cost <= MOST)
        for name, cost in added.items()
    ]


def quickest(pair: tuple[Callable[[], object], Callable[[], object]], *, share: int = 1) -> tuple[float, float]:
    """Return the microseconds of two calls, in alternation: other work on the machine only adds to the quickest."""
    both = [tuple(map(_once, pair)) for _ in range(REPEATS // share)]
    one, other = (min(times) for times in zip(*both, strict=True))
    return one, other


def _once(call: Callable[[], object]) -> float:
    """Return the microseconds of one call."""
    return timeit.timeit(call, number=CALLS) / CALLS * 1e6
