"""Hooks around attempts and publishes (the setting AROUND)."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_rmq_retry import (
    Delivery,
    Fixed,
    Handler,
    InPlace,
    Message,
    OneShot,
    Park,
    RetryThenPark,
    handler,
    publish_many,
)
from django_rmq_retry.errors import DeadlineExceeded
from django_rmq_retry.hooks import Around, AroundAttempt, AroundPublish, project_hooks
from django_rmq_retry.policies import Kind
from django_rmq_retry.testing import RmqTest

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
bound: ContextVar[str] = ContextVar("bound", default="")
Set = Callable[..., None]
ENDS = [DeadlineExceeded("charge", 1.0), KeyboardInterrupt(), SystemExit("asked to stop")]


class Seen:
    """A hook that keeps what it was called with, and the order in which it was entered and left."""

    def __init__(self, order: list[str] | None = None, name: str = "one") -> None:
        self.name, self.order = name, [] if order is None else order
        self.attempts: list[AroundAttempt] = []
        self.publishes: list[AroundPublish] = []

    @contextmanager
    def __call__(self, one: Around) -> Iterator[None]:
        self.order.append(f"enter {self.name}")
        yield
        self.order.append(f"leave {self.name}")
        kept: list[Any] = self.attempts if isinstance(one, AroundAttempt) else self.publishes
        kept.append(one)


pytestmark = pytest.mark.usefixtures("no_handlers")


@pytest.fixture
def around(settings: Any) -> Set:
    def around(*hooks: object) -> None:
        settings.RMQ_RETRY = {**settings.RMQ_RETRY, "AROUND": [*hooks]}

    return around


def charging(does: Callable[[Any], object], **options: Any) -> Handler[object]:
    policy = RetryThenPark(attempts=3, backoff=Fixed(5))
    return handler("payments.charge", name="charge", **{"policy": policy, **options})(does)


def fail(_message: Any) -> None:
    raise TimeoutError("no answer")


def test_a_hook_surrounds_each_attempt_and_sees_its_verdict(around: Set, request: Any) -> None:
    seen = Seen()
    around(seen)
    rmq: RmqTest = request.getfixturevalue("rmq")
    charge = charging(fail)
    charge.publish({"payment": 7})
    rmq.drain()

    assert [one.verdict.kind for one in seen.attempts if one.verdict] == [Kind.RETRY, Kind.RETRY, Kind.PARK]
    assert [one.delivery.attempt for one in seen.attempts] == [1, 2, 3]
    assert {(one.handler, one.limit, str(one.error)) for one in seen.attempts} == {("charge", 3, "no answer")}
    assert seen.attempts[0].delivery.data == {"payment": 7}


def test_hooks_are_left_in_reverse_order_around_handler_and_publish(around: Set, request: Any) -> None:
    order: list[str] = []
    around(Seen(order, "one"), Seen(order, "two"))
    rmq: RmqTest = request.getfixturevalue("rmq")
    charge = charging(lambda _message: order.append("handler"))
    charge.publish({})
    published, order[:] = [*order], []
    rmq.drain()

    assert published == ["enter one", "enter two", "leave two", "leave one"]
    assert order == ["enter one", "enter two", "handler", "leave two", "leave one"]


class Choosing(Seen):
    """A hook for the messages of one type."""

    def declines(self, message: Delivery | Message) -> bool:
        if message.properties.type == "broken":
            raise LookupError("no decision")
        return message.properties.type != "wanted"


@pytest.mark.parametrize("others", [0, 1])
def test_a_hook_is_not_called_for_messages_that_it_declines(around: Set, others: int, request: Any) -> None:
    choosing, more = Choosing(), [Seen() for _ in range(others)]
    around(choosing, *more)
    rmq: RmqTest = request.getfixturevalue("rmq")
    charge = charging(fail, policy=OneShot())
    for kind in ("wanted", "other", "broken"):
        charge.publish({}, type=kind)
    rmq.drain()

    assert [one.message.properties.type for one in choosing.publishes] == ["wanted"]
    assert [one.delivery.type for one in choosing.attempts] == ["wanted"]
    assert [one.verdict.kind for one in choosing.attempts if one.verdict] == [Kind.DISCARD]
    assert [(len(other.attempts), len(other.publishes)) for other in more] == [(3, 3)] * others
    assert dict(project_hooks().failures) == {"tests.test_hooks.Choosing": 2}


class Generating:
    """A hook whose ``__call__`` is a generator function."""

    def __init__(self) -> None:
        self.left: list[str] = []

    def __call__(self, one: Around) -> Iterator[None]:
        yield
        self.left.append(type(one).__name__)


class Odd(Generating):
    """A hook that returns from ``declines`` what is true, but not True."""

    def declines(self, _message: Delivery | Message) -> object:
        return object()


class Unready(Generating):
    """A hook whose attribute ``declines`` cannot be read."""

    @property
    def declines(self) -> object:
        raise ValueError("not ready")


class Unreadable(Seen):
    """A hook none of whose other attributes can be read."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


def test_a_hook_whose_attributes_cannot_be_read_is_called(around: Set, request: Any) -> None:
    hook = Unreadable()
    around(hook)
    rmq: RmqTest = request.getfixturevalue("rmq")
    charging(lambda _message: None).publish({})
    rmq.drain()

    assert (len(hook.publishes), len(hook.attempts), project_hooks().failures) == (1, 1, {})


def test_a_generator_function_with_bound_arguments_is_a_hook(around: Set, request: Any) -> None:
    left: list[str] = []

    def noting(where: list[str], one: Around) -> Iterator[None]:
        yield
        where.append(type(one).__name__)

    around(partial(noting, left))
    rmq: RmqTest = request.getfixturevalue("rmq")
    charging(lambda _message: None).publish({})
    rmq.drain()

    assert (left, project_hooks().failures) == (["AroundPublish", "AroundAttempt"], {})


@pytest.mark.parametrize("kind", [Generating, Odd, Unready])
def test_only_an_answer_that_is_true_declines(around: Set, kind: type[Generating], request: Any) -> None:
    hook = kind()
    around(hook)
    rmq: RmqTest = request.getfixturevalue("rmq")
    charging(lambda _message: None).publish({})
    rmq.drain()

    assert (hook.left, project_hooks().failures) == (["AroundPublish", "AroundAttempt"], {})


def test_a_hook_that_declined_a_message_is_not_called_because_another_has_seen_it(around: Set, request: Any) -> None:
    def traces(one: Around) -> None:
        if isinstance(one, AroundAttempt):
            one.traceparent = CONTEXT

    choosing = Choosing()
    around(traces, choosing)
    rmq: RmqTest = request.getfixturevalue("rmq")
    charging(fail, policy=RetryThenPark(attempts=3, backoff=Fixed(1), via=InPlace())).publish({}, type="other")
    rmq.drain()

    assert choosing.attempts == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_context_variable_of_a_hook_reaches_the_handler(around: Set, asynchronous: bool, request: Any) -> None:
    found: list[str] = []

    @contextmanager
    def bind(one: Around) -> Iterator[None]:
        token = bound.set(type(one).__name__)
        yield
        bound.reset(token)

    async def awaits(_message: Any) -> None:
        await asyncio.sleep(0)
        found.append(bound.get())

    around(bind)
    rmq: RmqTest = request.getfixturevalue("rmq")
    charging(awaits if asynchronous else lambda _message: found.append(bound.get())).publish({})
    rmq.drain()

    assert (found, bound.get()) == (["AroundAttempt"], "")


@pytest.mark.parametrize("when", ["enters", "leaves", "is called"])
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)])
def test_a_broken_hook_costs_no_message(
    around: Set, when: str, error: BaseException, request: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def __enter__(self) -> None:
            if when == "enters":
                raise error

        def __exit__(self, *_error: object) -> None:
            if when == "leaves":
                raise error

    def breaking(one: Around) -> Broken | None:
        if isinstance(one, AroundPublish) and not isinstance(error, Exception):
            return None
        if when == "is called":
            raise error
        return Broken()

    seen, ran = Seen(), list[object]()
    around(breaking, seen)
    rmq: RmqTest = request.getfixturevalue("rmq")
    charge = charging(ran.append)
    with caplog.at_level(logging.ERROR, "django_rmq_retry"):
        for _ in range(3):
            charge.publish({})
        rmq.drain()

    assert (len(ran), len(seen.attempts), len(seen.publishes)) == (3, 3, 3)
    assert list(project_hooks().failures.values()) == [6 if isinstance(error, Exception) else 3]
    told = [record.getMessage() for record in caplog.records if record.__dict__.get("event") == "hook_failed"]
    name = f"{__name__}.{breaking.__qualname__}"
    assert told == [
        f"Hook {name} of RMQ_RETRY['AROUND'] failed; the message is not affected. Failures so far: 1",
    ]


def test_an_error_of_the_handler_is_not_raised_in_a_hook_and_cannot_be_swallowed(around: Set, request: Any) -> None:
    given: list[object] = []

    class Swallowing:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> bool:
            given.extend(error)
            return True

    around(lambda one: Swallowing() if isinstance(one, AroundAttempt) else None)
    rmq: RmqTest = request.getfixturevalue("rmq")
    charge = charging(fail)
    charge.publish({})
    rmq.drain()

    assert given == [None] * 9
    assert rmq.parked(charge).code == "retries_exhausted"


def test_a_hook_adds_headers_that_each_retry_keeps(around: Set, request: Any) -> None:
    def add(one: Around) -> None:
        if isinstance(one, AroundPublish):
            one.add_headers({"traceparent": CONTEXT, "tenant": "north"})

    around(add)
    rmq: RmqTest = request.getfixturevalue("rmq")
    charge = charging(fail)
    charge.publish({}, headers={"tenant": "south", "kept": 1})
    publish_many([charge.message({})])
    rmq.drain()

    found = [dict(one.message.headers) for one in rmq.attempts(charge)]
    assert {(one["traceparent"], one["tenant"]) for one in found} == {(CONTEXT, "north")}
    assert [one.get("kept") for one in found].count(1) == 3


def test_a_header_that_is_too_large_leaves_the_message_as_it_was(around: Set, request: Any) -> None:
    around(lambda one: one.add_headers({"large": "x" * 200_000}) if isinstance(one, AroundPublish) else None)
    rmq: RmqTest = request.getfixturevalue("rmq")
    ran: list[Any] = []
    charging(ran.append).publish({})
    rmq.drain()

    assert [dict(one.headers) for one in ran] == [{}]
    assert sum(project_hooks().failures.values()) == 1


def test_a_hook_that_replaces_the_message_by_nothing_is_ignored(around: Set, request: Any) -> None:
    around(lambda one: setattr(one, "message", None) if isinstance(one, AroundPublish) else None)
    rmq: RmqTest = request.getfixturevalue("rmq")
    ran: list[Any] = []
    charging(ran.append).publish({"payment": 7})
    rmq.drain()

    assert [one.data for one in ran] == [{"payment": 7}]


@pytest.mark.parametrize("forged", ["00-zz", "x" * 55, CONTEXT + "\n", 7])
def test_a_forged_trace_context_is_ignored(around: Set, forged: object, request: Any) -> None:
    previous: list[str] = []

    def trace(one: Around) -> None:
        if isinstance(one, AroundAttempt):
            previous.append(one.previous)
        else:
            one.add_headers({"rmq-retry-traceparent": forged, "rmq-retry-queue": "payments.charge"})

    around(trace)
    rmq: RmqTest = request.getfixturevalue("rmq")
    charging(lambda _message: None).publish({})
    rmq.drain()

    assert previous == [""]


def test_a_call_is_a_publish_of_its_own_kind(around: Set, request: Any) -> None:
    seen = Seen()
    around(seen)
    request.getfixturevalue("rmq")
    quote = handler("rates.quote", policy=OneShot(), name="quote")(lambda _message: {"rate": "1.08"})

    assert quote.call({"pair": "EURUSD"}) == {"rate": "1.08"}
    assert [(one.handler, one.kind) for one in seen.publishes] == [("quote", "call")]
    assert [one.handler for one in seen.attempts] == ["quote"]


def test_a_message_parked_by_its_handler_shows_park_and_one_without_a_handler_no_attempt(
    around: Set, request: Any
) -> None:
    seen = Seen()
    around(seen)
    rmq: RmqTest = request.getfixturevalue("rmq")

    def freeze(_message: Any) -> None:
        raise Park("The account is frozen")

    charge = charging(freeze, type="payment.charge")
    charge.publish({})
    charge.publish({}, type="unknown")
    rmq.drain()

    assert len(rmq.messages("payments.charge.parked")) == 2
    assert [one.verdict and one.verdict.kind for one in seen.attempts] == [Kind.PARK]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("payments.trace", "takes a list of functions"),
        ([7], "takes a list of functions"),
        (["nowhere.trace"], "names 'nowhere.trace', which cannot be imported"),
    ],
)
def test_an_invalid_hook_is_refused_by_name(settings: Any, given: object, sentence: str) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "AROUND": given}

    with pytest.raises(ImproperlyConfigured, match="AROUND") as refused:
        project_hooks()
    assert sentence in str(refused.value)


@pytest.mark.parametrize("when", ["entered", "left"])
@pytest.mark.parametrize("end", ENDS)
def test_what_ends_the_caller_of_a_publish_passes_the_hooks(
    around: Set, when: str, end: BaseException, request: pytest.FixtureRequest
) -> None:
    @contextmanager
    def slow(one: Around) -> Iterator[None]:
        if isinstance(one, AroundPublish) and when == "entered":
            raise end
        yield
        if isinstance(one, AroundPublish) and when == "left":
            raise end

    seen = Seen()
    around(seen, slow)
    request.getfixturevalue("rmq")
    charge = charging(lambda _message: None)

    with pytest.raises(type(end)):
        charge.publish({})
    assert ([one.error for one in seen.publishes], sum(project_hooks().failures.values())) == ([end], 0)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit()])
def test_a_cancelled_future_in_a_hook_is_a_failure_of_the_hook(
    around: Set, error: BaseException, request: pytest.FixtureRequest
) -> None:
    def waiting(_one: Around) -> None:
        raise error

    around(waiting)
    rmq: RmqTest = request.getfixturevalue("rmq")
    done: list[object] = []
    charging(done.append).publish({})
    rmq.drain()

    assert (len(done), sum(project_hooks().failures.values())) == (1, 2)


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("end", ENDS)
def test_what_ends_the_caller_of_a_publish_passes_a_hook_that_is_asked(
    around: Set, others: int, end: BaseException, request: pytest.FixtureRequest
) -> None:
    class Slow(Seen):
        def declines(self, _message: Delivery | Message) -> bool:
            raise end

    around(Slow(), *(Seen() for _ in range(others)))
    request.getfixturevalue("rmq")
    charge = charging(lambda _message: None)

    with pytest.raises(type(end)):
        charge.publish({})
    assert project_hooks().failures == {}


@pytest.mark.parametrize("given", [None, 7, "x" * 200_000, "\ud800", "00-zz"])
def test_an_invalid_trace_context_of_a_hook_is_left_out(
    around: Set, given: Any, request: pytest.FixtureRequest
) -> None:
    def trace(one: Around) -> None:
        one.traceparent = given  # type: ignore[union-attr]  # a hook of the project may set anything

    around(lambda one: trace(one) if isinstance(one, AroundAttempt) else None)
    rmq: RmqTest = request.getfixturevalue("rmq")
    charge = charging(fail)
    charge.publish({})
    rmq.drain()

    assert rmq.waits == [5, 5]
    assert "rmq-retry-traceparent" not in rmq.parked(charge).headers
