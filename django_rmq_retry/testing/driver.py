"""Runs handlers in the test's own thread: deliver, attempt, settle, advance the clock."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.utils.connection import ConnectionDoesNotExist
from django.utils.module_loading import import_string

from django_rmq_retry.amqp.contracts import Line, Publisher
from django_rmq_retry.breakers.gate import Board
from django_rmq_retry.consumer.attempt import Attempts
from django_rmq_retry.consumer.consumer import asked, lanes_of, lines_of
from django_rmq_retry.consumer.sequencer import Sequencer
from django_rmq_retry.handlers.attempt import OnceState, Surroundings
from django_rmq_retry.handlers.subscription import Intake, Subscription
from django_rmq_retry.messages.message import Delivery, Tell
from django_rmq_retry.testing.broker import Fault, Faults, Hands, Place
from django_rmq_retry.testing.views import Key, Tried
from django_rmq_retry.topology.versions import Server


class Valves:
    """What is switched outlives a crash, as the project's database does."""

    def __init__(self, intakes: Sequence[Intake]) -> None:
        self._lanes = {intake.queue.name: lanes_of(intake) for intake in intakes}
        self._asked = asked(intakes)
        self._prefetch: dict[str, int | None] = {}
        self._source: Hands | None = None
        self._ready: deque[Delivery] = deque()
        self._sequencer = Sequencer(lambda _delivery: None)

    def tell(self, source: Hands, ready: deque[Delivery], sequencer: Sequencer) -> None:
        """From now on this one consumes; ``ready`` and ``sequencer`` have what has arrived and was not begun."""
        self._source, self._ready, self._sequencer = source, ready, sequencer
        for lane, prefetch in self._prefetch.items():
            _pass_on(source, lane, prefetch)

    def shut(self, queue: str) -> None:
        lanes = self._lanes.get(queue, ())
        self._turn(lanes, 0)
        if queue in self._asked:
            return
        back = [one for one in self._ready if one.queue in lanes]
        for one in back:
            self._ready.remove(one)
        self._sequencer.give_up(lanes)
        if self._source is not None:
            self._source.give_back(back)

    def open(self, queue: str) -> None:
        self._turn(self._lanes.get(queue, ()), None)

    def try_one(self, queue: str) -> None:
        self._turn((queue,), 1)

    def able(self) -> bool:
        return True

    def _turn(self, lanes: Sequence[str], prefetch: int | None) -> None:
        for lane in lanes:
            self._prefetch[lane] = prefetch
            if self._source is not None:
                _pass_on(self._source, lane, prefetch)


def _pass_on(source: Hands, lane: str, prefetch: int | None) -> None:
    if prefetch == 0:
        source.pause(lane)
    else:
        source.resume(lane, prefetch=prefetch)


MOST_DELIVERIES = 100_000
MOST_TURNS = 1_000_000
MOST_AT_ONCE = 1000


class NeverQuiet(AssertionError):
    """Running on would have no end."""


class Driver:
    """The consumer of a test: one worker, which is the test itself."""

    def __init__(self, place: Place, publisher: Publisher, faults: Faults) -> None:
        self._place = place
        self._publisher = publisher
        self._faults = faults
        self._ready: deque[Delivery] = deque()
        self._source: Hands | None = None
        self._lines: tuple[Line, ...] = ()
        self._made: Callable[[], Attempts | None] = lambda: None
        self._attempts: Attempts | None = None
        self._board: Board | None = None
        self._valves = Valves(())
        self._keyed: frozenset[str] = frozenset()
        self._sequencer = Sequencer(lambda _delivery: None)
        self._following: Delivery | None = None
        self._fault: Fault | None = None
        self._escaped: BaseException | None = None
        self._patience = Patience(0)

    def employ(self, intakes: Sequence[Intake], surroundings: Surroundings, board: Board, *, prefetch: int) -> None:
        """Consume these queues from now on, as far as the board lets them flow."""
        self._valves = Valves(intakes)
        self._board, board.hands = board, self._valves
        meddled = [replace(intake, subscriptions=tuple(map(self._meddled, intake.subscriptions))) for intake in intakes]
        self._made = lambda: Attempts(meddled, surroundings)
        self._attempts = self._made()
        self._lines = tuple(line for intake in intakes for line in lines_of(intake, prefetch))
        self._keyed = frozenset(intake.queue.name for intake in intakes if intake.keyed)
        if self._source is not None:
            self._restart()

    def run(self, *, until: float | None = None, enough: Callable[[], bool] = lambda: False, limit: int = 0) -> None:
        """Run what is due until the clock shows ``until``, or until nothing is left to happen."""
        if self._source is None:
            self._restart()
        # A handler that calls another one runs this within the run that has called it.
        outer, self._patience = self._patience, Patience(limit)
        self._place.begin(until)
        try:
            self._run(until, enough)
        finally:
            self._patience = outer

    def unfinished(self, key: Key, tried: Tried) -> None:
        """To be told of each attempt after which another one follows."""
        self._patience.unfinished(key, tried)

    def _run(self, until: float | None, enough: Callable[[], bool]) -> None:
        made = turns = 0
        while not enough():
            if self._work_one():
                made += 1
                turns = 0
                if made > MOST_DELIVERIES:
                    raise NeverQuiet(
                        f"After {made} deliveries there is more to do. Does a handler publish anew? Else drain again."
                    )
                continue
            if self._switch():
                continue
            due = self._next(until)
            if due is None:
                return
            turns += 1
            if turns > MOST_TURNS:
                raise NeverQuiet(f"{turns} times in a row the broker moved messages, and none came to a handler.")
            self._place.advance(due)

    def _switch(self) -> bool:
        """Whether something was switched: a breaker lets a message be tried."""
        due = None if self._board is None else self._board.next_due()
        if self._board is None or due is None or due > self._place.now:
            return False
        self._board.turn()
        return True

    def _next(self, until: float | None) -> float | None:
        """When to look again; None: never."""
        due = self._place.next_due()
        switched = None if self._board is None else self._board.next_due()
        if switched is not None:
            due = switched if due is None else min(due, switched)
        if until is None or (due is not None and due <= until):
            return due
        return until if self._place.now < until else None

    def arrived(self, delivery: Delivery) -> None:
        if delivery.queue in self._keyed:
            self._sequencer.add(delivery)
        self._ready.append(delivery)

    def connected(self, server: Server) -> None: ...

    def lost(self, reason: str, retry_in: float) -> None: ...

    def failed(self, error: BaseException) -> None:
        self._escaped = error

    def drained(self) -> None: ...

    def _restart(self) -> None:
        """A new process: what the old one had in hand goes back, and what it knew is gone."""
        if self._source is not None:
            self._source.die()
            self._attempts = self._made()
        self._ready.clear()
        self._following = None
        if self._attempts is not None:
            self._sequencer = Sequencer(self._attempts.key)
        self._source = self._place.hands(self._publisher)
        self._valves.tell(self._source, self._ready, self._sequencer)
        self._source.start(self._lines, self)

    def _work_one(self) -> bool:
        source, attempts = self._source, self._attempts
        if source is None or attempts is None:
            return False
        source.poll()
        self._raise_what_escaped()
        if self._following is None and not self._ready:
            return False
        delivery = self._taken()
        if delivery is None:
            return True
        # A handler may call another one: what shall go wrong here stays this attempt's own.
        outer = self._take_fault()
        settlement = attempts.settlement(delivery)
        fault, self._fault = self._take_fault(), outer
        stays = settlement.tell is Tell.AGAIN
        self._following = self._sequencer.keep(delivery) if stays else self._sequencer.done(delivery)
        if fault is Fault.CRASH:
            self._restart()
        elif fault is Fault.DUPLICATE:
            source.lose_ack(delivery, settlement)
        elif fault is Fault.BROKER:
            source.lose("the test asked for it")
            source.settle(delivery, settlement)
        else:
            source.settle(delivery, settlement)
        self._raise_what_escaped()
        return True

    def _taken(self) -> Delivery | None:
        """The next one; nothing where it has to wait for another of its key."""
        following, self._following = self._following, None
        if following is not None:
            return following
        delivery = self._ready.popleft()
        return self._sequencer.take() if delivery.queue in self._keyed else delivery

    def _take_fault(self) -> Fault | None:
        fault, self._fault = self._fault, None
        return fault

    def _meddled(self, subscription: Subscription) -> Subscription:
        """The handler, failing where the test wants it to."""

        def run(delivery: Delivery) -> object:
            trouble = self._faults.take(subscription.name)
            if trouble is not None and not isinstance(trouble, Fault):
                raise trouble
            try:
                answer = subscription.run(delivery)
            except BaseException as error:
                if _is_the_tests(error):
                    self._escaped = error
                raise
            self._fault = trouble
            return answer

        return replace(subscription, run=run)

    def _raise_what_escaped(self) -> None:
        error = self._escaped or self._patience.over
        self._escaped = self._patience.over = None
        if error is not None:
            raise error


class Patience:
    """Notices a message that is attempted again and again without an end."""

    def __init__(self, limit: int) -> None:
        """With a limit a message has so many attempts; without, a thousand within one moment of the clock."""
        self._limit = limit
        self._counts: dict[Key, tuple[float, int]] = {}
        self.over: NeverQuiet | None = None

    def unfinished(self, key: Key, tried: Tried) -> None:
        at, count = self._counts.get(key, (tried.at, 0))
        count = count + 1 if self._limit or at == tried.at else 1
        self._counts[key] = tried.at, count
        if count >= (self._limit or MOST_AT_ONCE):
            self.over = NeverQuiet(
                f"Handler {tried.handler} has attempted one message of queue {key[0]!r} {count} times in "
                f"{tried.at:g} s, and there is no end: {tried.verdict.kind.value}, {tried.verdict.error}. "
                "Let it succeed or be parked, give drain() a higher limit, or run only for a while with advance(…)."
            )


def _is_the_tests(error: BaseException) -> bool:
    """Ctrl-C, pytest.fail() and their like are no errors of a handler."""
    outcome = not isinstance(error, Exception) and type(error).__module__.startswith("_pytest")
    return outcome or isinstance(error, KeyboardInterrupt)


ONCE = "django_rmq_retry.inbox.once.once"
"""By its name: pytest loads the kit before a project has its settings, and models ask for them."""


class NoDatabase(AssertionError):
    """A handler with ``once`` needs the database, which this test has not got."""


class Inbox:
    """Runs handlers with ``once``; what is the test's own mistake ends the test, and is no failure of a handler."""

    def __init__(self, end: Callable[[BaseException], None]) -> None:
        self._end = end

    def __call__(self, subscription: Subscription, delivery: Delivery, state: OnceState) -> object:
        lack = _lack(subscription)
        if lack is not None:
            self._end(lack)
            raise lack
        run: Callable[[Subscription, Delivery, OnceState], object] = import_string(ONCE)
        return run(subscription, delivery, state)


def _lack(subscription: Subscription) -> NoDatabase | None:
    alias = subscription.using or DEFAULT_DB_ALIAS
    said = f"Handler {subscription.name} runs with once in a transaction of database {alias!r}"
    try:
        connection = connections[alias]
        connection.ensure_connection()
    except (Error, ConnectionDoesNotExist, ImproperlyConfigured) as error:
        return NoDatabase(f"{said}, which cannot be used: {error}")
    except (RuntimeError, AssertionError) as error:
        # As pytest-django and SimpleTestCase refuse it.
        return NoDatabase(f"{said}, and this test may not use it: {error}")
    blocks = connection.atomic_blocks
    if blocks and not getattr(blocks[-1], "_from_testcase", False):
        return NoDatabase(f"{said}, and the test has one open. Call drain() or advance() outside of atomic().")
    return None
