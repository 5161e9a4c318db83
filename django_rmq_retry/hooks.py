"""Hooks around attempts and publishes: the setting ``AROUND``."""

import asyncio
import inspect
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

from django.core.signals import setting_changed

from django_rmq_retry import forks
from django_rmq_retry.amqp.frames import MOST_HEADER_BYTES
from django_rmq_retry.conf import NAME, settings
from django_rmq_retry.errors import HeadersTooLarge
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.stamp import TRACE_CONTEXT, Stamp
from django_rmq_retry.policies.verdict import Verdict

log = logging.getLogger("django_rmq_retry")

QUIET_SECONDS = 60.0
"""Seconds after a logged failure of a hook in which further failures of that hook are counted, but not logged."""


@dataclass(slots=True, eq=False, kw_only=True)
class AroundAttempt:
    """One attempt, as its hooks see it."""

    delivery: Delivery
    """The delivery as the handler receives it, with data, attempt number and ordering key."""
    handler: str
    limit: int | None = None
    """The number of attempts that the policy allows; None without a limit."""
    verdict: Verdict | None = None
    """The final verdict, known when the hook is left; None if the attempt ended without one."""
    error: BaseException | None = None
    """The error that led to the verdict."""
    traceparent: str = ""
    """The W3C trace context of this attempt. If a hook sets it as it is entered, copies and records keep it."""
    before: str = ""
    """The trace context of the attempt before if the message has stayed unacked since; otherwise a header has it."""
    hooks: "Sequence[Listed]" = ()
    """The hooks that see this attempt; the others have declined it."""

    @property
    def previous(self) -> str:
        """The W3C trace context of the attempt before; empty for a first attempt, or if no hook has set one."""
        return self.before or Stamp.read(self.delivery.headers).traceparent


@dataclass(slots=True, eq=False, kw_only=True)
class AroundPublish:
    """One publish, as its hooks see it."""

    message: Message
    """The message to be sent; ``add_headers`` replaces it."""
    handler: str = ""
    """The name of the handler that it is published to; empty for an exchange."""
    kind: Literal["publish", "call"] = "publish"
    stored: bool = False
    """True once the message is a row of the outbox, or waits for the commit."""
    error: BaseException | None = None

    def add_headers(self, headers: Mapping[str, object]) -> None:
        """Add headers to the message, in place of those with the same names."""
        known = self.message.properties
        changed = known.headers.replacing(put=headers)
        if len(changed.raw) > MOST_HEADER_BYTES:
            raise HeadersTooLarge(len(changed.raw), limit=MOST_HEADER_BYTES)
        self.message = replace(self.message, properties=replace(known, headers=changed))


Around: TypeAlias = AroundAttempt | AroundPublish
Hook: TypeAlias = Callable[[Any], "AbstractContextManager[object] | None"]
Entered: TypeAlias = list[tuple[str, AbstractContextManager[object]]]
RollBack: TypeAlias = Callable[[], Iterable[object]]
"""Rolls back the transactions that are open in this thread, and returns a sentence on each."""


class Listed(NamedTuple):
    """A hook of the setting."""

    name: str
    call: Hook
    declines: Callable[[Delivery | Message], object] | None


class Hooks:
    """The hooks of one process. A hook that fails costs no message: its failure is counted and logged.

    A hook may have a method ``declines``, which is asked before anything is made for it. Thus a hook that takes only a
    few of the messages costs next to nothing for the others.
    """

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = [_listed(hook) for hook in hooks]
        self._some_decline = any(hook.declines is not None for hook in self._hooks)
        self._lone = self._hooks[0].declines if len(self._hooks) == 1 else None
        """The method ``declines`` of the only hook; None if there are several, or the only one has no such method."""
        self.failures: Counter[str] = Counter()
        """The failures of each hook, by its name."""
        self._logged: dict[str, float] = {}
        self._lock = threading.Lock()

    def wanting(
        self, message: Delivery | Message, before: AroundAttempt | None = None, roll_back_left_open: RollBack = tuple
    ) -> Sequence[Listed]:
        """Return the hooks that do not decline; one that has seen an attempt ``before`` is not asked again."""
        if not self._some_decline:
            return self._hooks
        if self._lone is not None and before is None:
            # The usual setting has one hook. Without the loop, a message that it declines costs 0.3 µs, not 0.6 µs.
            forked = forks.count
            try:
                # Only True declines: whatever else a hook returns by mistake must not switch it off.
                wanted = () if self._lone(message) is True else self._hooks
            except BaseException as error:  # noqa: BLE001 - a broken hook must not cost a message
                forks.end_since(forked, error)
                self._declines_failed(self._hooks[0].name, error, message)
                return ()
            forks.end_since(forked)
            self._left(self._hooks[0].name, roll_back_left_open())
            return wanted
        seen = before.hooks if before is not None else ()
        wanting: list[Listed] = []
        for hook in self._hooks:
            try:
                with forks.ending():
                    if hook.declines is None or hook in seen or hook.declines(message) is not True:
                        wanting.append(hook)
            except BaseException as error:  # noqa: BLE001 - as above
                self._declines_failed(hook.name, error, message)
            self._left(hook.name, roll_back_left_open())
        return wanting

    def enter(self, one: Around, wanting: Sequence[Listed], *, roll_back_left_open: RollBack = tuple) -> Entered:
        """Enter hooks in their order; return those that must be left."""
        entered: Entered = []
        forked = forks.count
        for hook in wanting:
            try:
                context = hook.call(one)
                if context is not None:
                    context.__enter__()
                    entered.append((hook.name, context))
                forks.end_since(forked)
            except BaseException as error:
                forks.end_since(forked, error)
                if isinstance(one, AroundPublish) and _is_of_caller(error):
                    one.error = error
                    self.leave(entered, publish=one)
                    raise
                self._failed(hook.name, error)
            self._left(hook.name, roll_back_left_open())
        return entered

    def leave(
        self, entered: Entered, *, publish: AroundPublish | None = None, roll_back_left_open: RollBack = tuple
    ) -> None:
        """Leave the hooks in reverse order. No exception is passed to them: they find it in ``error``.

        Around a publish, what ends its caller may be raised here, and is raised once all are left.
        """
        late: BaseException | None = None
        forked = forks.count
        while entered:
            name, context = entered.pop()
            try:
                context.__exit__(None, None, None)
                forks.end_since(forked)
            except BaseException as error:  # noqa: BLE001 - as above
                forks.end_since(forked, error)
                if publish is not None and _is_of_caller(error):
                    late = publish.error = error
                else:
                    self._failed(name, error)
            self._left(name, roll_back_left_open())
        if late is not None:
            raise late

    @contextmanager
    def around(self, publish: AroundPublish) -> Iterator[None]:
        """Enter the hooks around a publish, and leave them with its exception in ``error``."""
        entered = self.enter(publish, self.wanting(publish.message))
        try:
            yield
        except BaseException as error:
            publish.error = error
            raise
        finally:
            self.leave(entered, publish=publish)

    def _declines_failed(self, name: str, error: BaseException, message: Delivery | Message) -> None:
        """Count and log a failure of a hook's ``declines``; the hook is not called for that message."""
        if isinstance(message, Message) and _is_of_caller(error):
            raise error
        self._failed(name, error)

    def _left(self, name: str, sentences: Iterable[object]) -> None:
        """Count and log what a hook has left open around a handler."""
        for sentence in sentences:
            self._failed(name, RuntimeError(str(sentence)))

    def _failed(self, name: str, error: BaseException) -> None:
        now = time.monotonic()
        with self._lock:
            self.failures[name] += 1
            if now - self._logged.get(name, -QUIET_SECONDS) < QUIET_SECONDS:
                return
            self._logged[name] = now
            count = self.failures[name]
        # A log handler that fails must not cost a message either.
        with suppress(BaseException):
            log.error(
                "Hook %s of RMQ_RETRY['AROUND'] failed; the message is not affected. Failures so far: %d",
                *(name, count),
                exc_info=error,
                extra={"event": "hook_failed", "hook": name, "failures": count},
            )


def _is_of_caller(error: BaseException) -> bool:
    """True if an error around a publish is for its caller: a deadline, Ctrl-C, the exit of the process.

    Such an error is raised in the caller's thread, wherever it is at that moment. A cancelled coroutine or a closed
    generator is not: these are raised only at an ``await`` or ``yield``, so here they are the hook's own failure.
    """
    return not isinstance(error, (Exception, asyncio.CancelledError, GeneratorExit))


def _listed(hook: Hook) -> Listed:
    try:
        return Listed(name_of(hook), _as_context(hook), _declines_of(hook))
    except Exception:  # noqa: BLE001 - an object whose attributes cannot be read is called as it is
        return Listed(_qualified(type(hook)), hook, None)


def name_of(hook: Hook) -> str:
    """Return the name of a hook, for logs and metrics."""
    return _qualified(hook if hasattr(hook, "__qualname__") else type(hook))


def _qualified(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"


def _as_context(hook: Hook) -> Hook:
    """Return the hook; a generator function, also one that is ``__call__``, is made to return a context manager."""
    listed: Any = hook
    generating = inspect.isgeneratorfunction(hook) or inspect.isgeneratorfunction(type(listed).__call__)
    return contextmanager(listed) if generating else hook


def _declines_of(hook: Hook) -> Callable[[Delivery | Message], object] | None:
    """Return the method ``declines`` of a hook, if it has one; the method of a listed class has no object."""
    declines: object = None
    with suppress(Exception):
        declines = getattr(hook, "declines", None)
    return declines if callable(declines) and not isinstance(hook, type) else None


def context_of(attempt: AroundAttempt) -> str:
    """Return the trace context that a hook has set; empty if it is not of W3C's form."""
    given: object = attempt.traceparent
    return attempt.traceparent if isinstance(given, str) and TRACE_CONTEXT.fullmatch(given) else ""


@cache
def project_hooks() -> Hooks:
    """Return the hooks that the settings name."""
    hooks: Sequence[Any] = settings().around
    return Hooks(hooks)


def _changed(*, setting: str, **_: object) -> None:
    if setting == NAME:
        project_hooks.cache_clear()


setting_changed.connect(_changed, dispatch_uid="django_rmq_retry.hooks")
