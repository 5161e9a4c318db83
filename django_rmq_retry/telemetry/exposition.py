"""Prometheus' text format: the numbers of a board and the figures of broker and database as lines."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import chain

from django_rmq_retry.telemetry.meter import Board, Histogram, Slot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "rmq_retry_"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric with its samples: its name without the prefix, its type, its help text."""

    name: str
    kind: str
    about: str
    samples: tuple[tuple[Labels, float], ...] = ()
    histograms: tuple[tuple[Labels, Histogram], ...] = field(default=())

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
            bucket = f"{name}_bucket{inside[:-1]}," if inside else f"{name}_bucket{{"
            counts = zip(_bounds(histogram.bounds), histogram.counts, strict=True)
            lines += [f"{bucket}{bound}{int(count)}" for bound, count in counts]
            lines.append(f"{name}_sum{inside} {_number(histogram.total)}")
            lines.append(f"{name}_count{inside} {_number(histogram.count)}")
        return lines


def text_of(families: Iterable[Family]) -> str:
    """Return the families in the text format."""
    return "\n".join([*chain.from_iterable(family.lines() for family in families), ""])


def families_of(board: Board, *, alive: int, version: str) -> Iterator[Family]:
    """Return the metrics of the consuming processes; ``alive`` is the number of those that run and answer."""
    named = [{"queue": one.queue, "handler": one.handler} for one in board.labels]
    places = range(len(named))
    yield Family(
        name="attempts_total",
        kind="counter",
        about="Attempts of handlers, and messages parked without one, by verdict.",
        samples=tuple(
            ({**named[at], "verdict": verdict}, count) for at in places for verdict, count in board.verdicts(at)
        ),
    )
    yield Family(
        name="parked_total",
        kind="counter",
        about="Messages parked by these processes, by reason.",
        samples=tuple(
            ({**named[at], "reason": reason}, count) for at in places for reason, count in board.reasons(at) if count
        ),
    )
    handled = [at for at in places if named[at]["handler"]]
    yield Family(
        name="handler_seconds",
        kind="histogram",
        about="Duration of an attempt, from its begin to its verdict.",
        histograms=tuple((named[at], board.seconds(at)) for at in handled),
    )
    yield Family(
        name="age_seconds",
        kind="histogram",
        about="Time from a message's timestamp to the begin of its first attempt, of some messages a second.",
        histograms=tuple((named[at], board.ages(at)) for at in handled),
    )
    yield Family(
        name="wait_seconds",
        kind="histogram",
        about="Wait before a retry, as decided by the policy.",
        histograms=tuple((named[at], board.waits(at)) for at in handled),
    )
    yield from _processes(board, alive, version)


def _processes(board: Board, alive: int, version: str) -> Iterator[Family]:
    def one(name: str, kind: str, about: str, value: float, **labels: str) -> Family:
        return Family(name=name, kind=kind, about=about, samples=((labels, value),))

    yield one("build_info", "gauge", "The version of django-rmq-retry.", 1.0, version=version)
    yield one("processes", "gauge", "Consuming processes that should run.", float(board.processes))
    yield one("processes_alive", "gauge", "Consuming processes whose main loop, I/O thread and workers move.", alive)
    ready = board.sum_of(Slot.READY)
    yield one("processes_ready", "gauge", "Processes that are connected and consume all of their queues.", ready)
    connected = board.sum_of(Slot.CONNECTED)
    yield one("processes_connected", "gauge", "Processes that are connected to the broker.", connected)
    starts, connections = board.sum_of(Slot.STARTS), board.sum_of(Slot.CONNECTIONS)
    yield one("process_starts_total", "counter", "Starts of consuming processes.", starts)
    yield one("connections_total", "counter", "Connections to the broker, reconnects included.", connections)
    yield one("threads", "gauge", "Worker threads.", board.sum_of(Slot.THREADS))
    yield one(
        "threads_busy", "gauge", "Worker threads that run a handler: messages in flight.", board.sum_of(Slot.BUSY)
    )
    waiting = board.sum_of(Slot.WAITING)
    yield one("messages_waiting", "gauge", "Messages in the processes that wait for a thread or their turn.", waiting)
    copies = board.sum_of(Slot.COPIES)
    yield one("copies_unconfirmed", "gauge", "Copies for retries and parking that are sent and not confirmed.", copies)
    unanswered = board.sum_of(Slot.UNANSWERED)
    yield one("answers_refused_total", "counter", "Answers that REPLY_TO does not allow.", unanswered)
    failures = board.sum_of(Slot.HOOK_FAILURES)
    yield one("hook_failures_total", "counter", "Failures of hooks of the setting AROUND.", failures)


@cache
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Return the end of each bucket's labels."""
    return tuple(f'le="{bound}"}} ' for bound in (*(f"{bound:g}" for bound in bounds), "+Inf"))


def _braced(labels: Labels) -> str:
    """Return labels as they follow the name of a metric."""
    return f"{{{','.join([_label(name, text) for name, text in labels.items()])}}}" if labels else ""


@lru_cache(maxsize=4096)
def _label(name: str, text: str) -> str:
    return f'{name}="{text.translate(_ESCAPES)}"'


def _number(value: float) -> str:
    whole = int(value)
    return str(whole) if whole == value else repr(value)
