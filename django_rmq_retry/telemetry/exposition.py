"""Prometheus' text format: the numbers of a board and the figures of broker and database as lines."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain

from django_rmq_retry.telemetry.meter import Board, Histogram, Slot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "rmq_retry_"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Labels = Mapping[str, str]


_OF_PROCESSES = {
    Slot.READY: ("processes_ready", "Processes that are connected and consume all of their queues."),
    Slot.CONNECTED: ("processes_connected", "Processes that are connected to the broker."),
    Slot.STARTS: ("process_starts_total", "Starts of consuming processes."),
    Slot.CONNECTIONS: ("connections_total", "Connections to the broker, reconnects included."),
    Slot.THREADS: ("threads", "Worker threads."),
    Slot.BUSY: ("threads_busy", "Worker threads that run a handler: messages in flight."),
    Slot.WAITING: ("messages_waiting", "Messages in the processes that wait for a thread or their turn."),
    Slot.COPIES: ("copies_unconfirmed", "Copies for retries and parking that are sent and not confirmed."),
    Slot.UNANSWERED: ("answers_refused_total", "Answers that REPLY_TO does not allow."),
    Slot.HOOK_FAILURES: ("hook_failures_total", "Failures of hooks of the setting AROUND."),
}
"""The metrics that are sums over the processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric with its samples: its name without the prefix, its type, its help text."""

    name: str
    kind: str
    about: str
    samples: tuple[tuple[Labels, float], ...] = ()
    histograms: tuple[tuple[Labels, Histogram], ...] = ()

    def lines(self) -> list[str]:
        """Return the family as lines; a family without samples has none."""
        if not self.samples and not self.histograms:
            return []
        name = PREFIX + self.name
        lines = [f"# HELP {name} {self.about}", f"# TYPE {name} {self.kind}"]
        lines += [f"{name}{_braced(labels)} {_number(value)}" for labels, value in self.samples]
        for labels, histogram in self.histograms:
            # Rendered once for all of its lines: a consumer with many handlers has thousands of them.
            inside = _braced(labels)
            bucket = f"{name}_bucket{inside[:-1]},"
            counts = zip(_bounds(histogram.bounds), histogram.counts, strict=True)
            lines += [f"{bucket}{bound}{int(count)}" for bound, count in counts]
            lines.append(f"{name}_sum{inside} {_number(histogram.total)}")
            lines.append(f"{name}_count{inside} {_number(histogram.count)}")
        return lines


def exposition_text(families: Iterable[Family]) -> str:
    return "\n".join([*chain.from_iterable(family.lines() for family in families), ""])


def families_of(board: Board, *, alive: int, version: str) -> Iterator[Family]:
    """Return the metrics of the consuming processes; ``alive`` is the number of those that run and answer."""
    named = [{"queue": one.queue, "handler": one.handler} for one in board.labels]
    places = range(len(named))
    attempts = [({**named[at], "verdict": verdict}, count) for at in places for verdict, count in board.verdicts(at)]
    about = "Attempts of handlers, and messages parked without one, by verdict."
    yield Family(name="attempts_total", kind="counter", about=about, samples=tuple(attempts))
    parked = [({**named[at], "reason": why}, count) for at in places for why, count in board.reasons(at) if count]
    about = "Messages parked by these processes, by reason."
    yield Family(name="parked_total", kind="counter", about=about, samples=tuple(parked))
    handled = [at for at in places if named[at]["handler"]]
    age = "Time from a message's timestamp to the begin of its first attempt, of some messages a second."
    for name, about, histogram in (
        ("handler_seconds", "Duration of an attempt, from its begin to its verdict.", board.seconds),
        ("age_seconds", age, board.ages),
        ("wait_seconds", "Wait before a retry, as decided by the policy.", board.waits),
    ):
        histograms = tuple((named[at], histogram(at)) for at in handled)
        yield Family(name=name, kind="histogram", about=about, histograms=histograms)
    yield single("build_info", "The version of django-rmq-retry.", 1.0, version=version)
    yield single("processes", "Consuming processes that should run.", board.processes)
    yield single("processes_alive", "Consuming processes whose main loop, I/O thread and workers move.", alive)
    for slot, (name, about) in _OF_PROCESSES.items():
        yield single(name, about, board.sum_of(slot))


def single(name: str, about: str, value: float, **labels: str) -> Family:
    """Return a family of one sample: a counter if its name ends as counters do, or a gauge."""
    kind = "counter" if name.endswith("_total") else "gauge"
    return Family(name=name, kind=kind, about=about, samples=((labels, float(value)),))


@cache
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Return the end of each bucket's labels."""
    return tuple(f'le="{bound}"}} ' for bound in (*(f"{bound:g}" for bound in bounds), "+Inf"))


def _braced(labels: Labels) -> str:
    return f"{{{','.join([_label(name, text) for name, text in labels.items()])}}}" if labels else ""


@lru_cache(maxsize=4096)
def _label(name: str, text: str) -> str:
    return f'{name}="{text.translate(_ESCAPES)}"'


def _number(value: float) -> str:
    whole = int(value)
    return str(whole) if whole == value else repr(value)
