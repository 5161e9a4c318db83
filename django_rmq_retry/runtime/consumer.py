"""The consumer: takes deliveries from a source, has workers make attempts, settles them, and knows when to end."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from django_rmq_retry.broker.base import Server, Source
from django_rmq_retry.core.errors import BrokerRefused, BrokerUnfit, QueueUnusable, TopologyMissing
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settlement import Settlement, Tell
from django_rmq_retry.core.subscription import Intake
from django_rmq_retry.runtime.attempt import Attempts
from django_rmq_retry.runtime.limits import Limits
from django_rmq_retry.runtime.lines import lines_of
from django_rmq_retry.runtime.pausing import Valves
from django_rmq_retry.runtime.quota import Quota
from django_rmq_retry.runtime.sequencing import Sequencer
from django_rmq_retry.runtime.surroundings import tell_mishap
from django_rmq_retry.runtime.workers import Workers

log = logging.getLogger("django_rmq_retry")

TICK = 0.5
AFTER_MISHAP = 5.0
"""Seconds that a message stays in hand when something outside its handler failed."""
LAST_WORDS = 5.0

STOPPED, BROKEN, NO_BROKER, UNFIT = 0, 1, 3, 4
"""Exit codes, the same as every command's."""


def _unheard() -> None: ...


class Consumer:
    """One consuming process. ``run`` returns its exit code."""

    def __init__(
        self,
        intakes: Sequence[Intake],
        source: Source,
        attempts: Attempts,
        *,
        threads: int,
        prefetch: int,
        limits: Limits,
        refusal: Callable[[Server], str | None] = lambda _server: None,
    ) -> None:
        most = limits.messages
        # More than may be run would only go back, and a queue may count that as if its worker had gone away.
        held = prefetch if most is None else min(prefetch, most)
        self._quota = None if most is None else Quota(most, last=self._last_begun)
        self._lines = tuple(line for intake in intakes for line in lines_of(intake, held))
        self._source = source
        self._attempts = attempts
        self._keyed = frozenset(intake.queue.name for intake in intakes if intake.keyed)
        self._sequencer = Sequencer(attempts.key)
        self._limits = limits
        self._refusal = refusal
        self._workers: Workers[Delivery] = Workers(threads, self._work)
        self._over = False
        # A SimpleQueue, for stop() is called by signal handlers: setting an Event there may wait for itself for ever.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._drained = threading.Event()
        self._code, self._lost_at, self._tries = STOPPED, 0.0, 0
        self.why = ""
        """Why it stops, once it does."""
        self.server: Server | None = None
        self.online = False
        able = lambda: self.online and not self._over  # noqa: E731
        self.valves = Valves(intakes, source, self._workers, self._sequencer, able=able)
        self.reached = self.ticked = _unheard
        """Called when the broker is reached; and at every tick while all is well, for a liveness file and the like."""
        self.beside_empty: Callable[[Callable[[bool], None]], None] = lambda told: told(True)  # noqa: FBT003
        """Asked when every queue is empty, before a burst ends: whether what runs beside has done its work as well."""

    def run(self) -> int:
        """Consume until told to stop, or a limit is reached, or nothing can be done any more."""
        began = time.monotonic()
        self._workers.start()
        self._source.start(self._lines, self)
        while not self._over:
            with suppress(queue.Empty):
                self._wake.get(timeout=TICK)
            if not self._over:
                self._look_after(time.monotonic() - began)
        return self._wind_down()

    def stop(self, why: str, code: int = STOPPED) -> None:
        """End in good order; the first reason is the one that counts."""
        if self._over:
            return
        self.why, self._code, self._over = why, code, True
        self._wake.put(None)
        if code:
            log.critical("%s", why, extra={"event": "failed"})

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(line.queue for line in self._lines)

    @property
    def running(self) -> int:
        """Messages that handlers work on."""
        return self._workers.running

    @property
    def waiting(self) -> int:
        """Messages that wait here for a thread."""
        return self._workers.waiting + self._sequencer.waiting

    def arrived(self, delivery: Delivery) -> None:
        if self._over:
            self._source.give_back([delivery])
            return
        if delivery.queue in self._keyed:
            self._sequencer.add(delivery)
        self._workers.add(delivery)

    def connected(self, server: Server) -> None:
        self.server, self.online, self._tries = server, True, 0
        self.reached()
        refusal = self._refusal(server)
        if refusal:
            self.failed(BrokerUnfit(refusal))
            return
        log.info("Connected to %s", server, extra={"event": "connected", "broker": str(server)})

    def lost(self, reason: str, retry_in: float) -> None:
        self.online = False
        self._lost_at = time.time() if not self._tries else self._lost_at
        self._tries += 1
        if self._limits.fail_fast:
            self.stop(f"No broker ({reason}), and --fail-fast waits for none.", NO_BROKER)
            return
        log.warning(
            "No broker since %s (%s), next try in %.1f s (attempt %s)",
            time.strftime("%H:%M:%S", time.localtime(self._lost_at)),
            reason,
            retry_in,
            self._tries,
            extra={"event": "lost"},
        )

    def failed(self, error: BaseException) -> None:
        codes = {BrokerRefused: NO_BROKER, BrokerUnfit: UNFIT, QueueUnusable: UNFIT, TopologyMissing: UNFIT}
        self.stop(str(error), codes.get(type(error), BROKEN))

    def drained(self) -> None:
        self._drained.set()

    def _work(self, delivery: Delivery) -> None:
        if delivery.queue not in self._keyed:
            self._make(delivery)
            return
        # It stands for one arrival, whichever is the next. Who has done with a message goes on with those behind it.
        turn = self._sequencer.take()
        while turn is not None:
            turn = self._make(turn)

    def _make(self, delivery: Delivery) -> Delivery | None:
        """Make an attempt and have it settled; what waited for it, where its order counts."""
        quota = self._quota
        if quota is not None and not quota.admits(delivery):
            following = self._sequencer.keep(delivery)
            if self._over or quota.begun:
                self._give_back_rest()
            return following
        try:
            settlement = self._attempts.settlement(delivery, None if quota is None else quota.begin)
        except BaseException as mishap:  # noqa: BLE001 - whatever it is, the worker must live on
            tell_mishap(mishap, AFTER_MISHAP)
            # It stays in hand, for a return would count as a crash; and it was no attempt of the message's.
            delivery.attempt -= 1
            settlement = Settlement(tell=Tell.AGAIN, hold=AFTER_MISHAP)
        stays = settlement.tell is Tell.AGAIN
        # Before it can come again.
        following = self._sequencer.keep(delivery) if stays else None
        self._source.settle(delivery, settlement)
        if not stays:
            following = self._sequencer.done(delivery)
        if quota is not None:
            for other in quota.end(delivery):
                self.arrived(other)
            if quota.used:
                self.stop(f"{quota.most} messages were asked for")
        return following

    def _last_begun(self) -> None:
        """Before it is acknowledged: what the broker would send in its place could only go back."""
        self._source.quiesce()
        self._give_back_rest()

    def _give_back_rest(self) -> None:
        self._sequencer.clear()
        self._source.give_back([*self._workers.take_back(), *(self._quota.take_spare() if self._quota else ())])

    def _look_after(self, age: float) -> None:
        dead = self._workers.dead
        if dead:
            self.stop(f"Worker thread {dead[0]} has ended.", BROKEN)
        elif not self._source.alive:
            self.stop("The I/O thread has ended, or stands still.", BROKEN)
        elif self._limits.seconds is not None and age >= self._limits.seconds:
            self.stop(f"{self._limits.seconds:g} s were asked for")
        elif self._limits.burst:
            self._source.empty(self._emptied)
        for asked in self._limits.also:
            why = asked()
            if why:
                self.stop(why)
        if not self._over:
            self.ticked()

    def _emptied(self, empty: bool) -> None:  # noqa: FBT001 - an answer, not an option
        if empty:
            # Only now: what was parked last has left its work queue, and lies in the parked one.
            self.beside_empty(self._all_empty)

    def _all_empty(self, empty: bool) -> None:  # noqa: FBT001 - an answer, not an option
        if empty:
            self.stop("every queue is empty")

    def _say_stopping(self) -> None:
        running = self._workers.running
        if running:
            what = f"finishing {running} message{'' if running == 1 else 's'} (max {self._limits.shutdown:g} s)."
            what += " Again to stop now; unfinished messages return to the queue."
        else:
            what = "nothing is in hand."
        why = f" ({self.why})" if not self._code else ""
        log.info("Stopping%s: %s", why, what, extra={"event": "stopping"})

    def _wind_down(self) -> int:
        """Finish what has begun, give the rest back, tell the broker, close."""
        self._say_stopping()
        self._source.quiesce()
        self._give_back_rest()
        if not self._workers.wait_quiet(self._limits.shutdown):
            log.error("%s handlers did not finish; their messages return to their queues", self._workers.running)
            self._code = self._code or BROKEN
        self._source.stop()
        if not self._drained.wait(LAST_WORDS):
            log.error("The broker did not hear the last words; what was not settled returns to its queue")
            self._code = self._code or BROKEN
        self._workers.stop()
        return self._code
