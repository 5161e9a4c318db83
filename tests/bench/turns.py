"""Contenders that run side by side and take short turns: one works, the others are stopped.

The speed of a shared machine changes several times a second. Trials one after another, each with a process of its own,
meet different speeds; turns of some hundredths of a second, taken in alternation, meet the same ones.
"""

import os
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from threading import Event
from typing import IO

from django_rmq_retry import Message
from tests.amqp.live import publishing
from tests.bench import trials
from tests.bench.queues import PATIENCE, WINDOW, fill, message, prepared
from tests.bench.report import Round
from tests.bench.suites import Contender, Suite
from tests.bench.task import Task
from tests.tooling.node import Node

ROUNDS_PER_REQUESTED = 4
"""The rounds for each one of the option ``--rounds``: a round of turns is shorter than a round of trials."""
POLL = 0.0005


@dataclass(slots=True)
class Player:
    """The process of a contender. It stops itself after each turn."""

    task: Task
    child: trials.Child
    log: IO[bytes]
    done: int = 0
    """The turns that it has had."""
    seconds: float = 0.0
    """The time of all its turns."""
    failed: bool = False

    @property
    def cpu(self) -> float:
        """The CPU time at its last mark."""
        return self.child.marks.get(self.task.mark_of(self.done), {}).get("cpu", 0.0)

    def warm_up(self) -> None:
        """Let the process handle its first messages; it stops itself after them."""
        fill(replace(self.task, messages=0))
        self.failed = not self._ends(self.task.mark_of(0))

    def turn(self) -> None:
        """Continue the process until it has handled the messages of one turn."""
        if self.failed:
            return
        mark = self.task.mark_of(self.done + 1)
        began = time.monotonic()
        self.child.process.send_signal(signal.SIGCONT)
        self.failed = not self._ends(mark)
        if not self.failed:
            self.done += 1
            self.seconds += self.child.marks[mark]["at"] - began

    def _ends(self, mark: str) -> bool:
        """Wait for a mark and until the process has stopped: a signal to continue that comes earlier has no effect."""
        deadline = time.monotonic() + trials.PATIENCE
        if not self.child.wait_for(mark):
            return False
        while time.monotonic() < deadline:
            try:
                if os.waitid(os.P_PID, self.child.process.pid, os.WSTOPPED | os.WNOHANG) is not None:
                    return True
            except ChildProcessError:
                # The process has ended.
                return False
            Event().wait(POLL)
        return False


def rounds(node: Node, suite: Suite, number: int) -> list[Round]:
    """Let the contenders take turns; a round sums up as many turns of each as the suite says."""
    number *= ROUNDS_PER_REQUESTED
    with ExitStack() as stack:
        players = {one.name: _player(stack, node, suite, one, number) for one in suite.contenders}
        for player in players.values():
            player.warm_up()
        return [_round(players, suite) for _ in range(number)]


def _round(players: dict[str, Player], suite: Suite) -> Round:
    _fill([player.task for player in players.values()], suite.turns)
    before = {name: (player.seconds, player.cpu) for name, player in players.items()}
    for turn in range(suite.turns):
        for name in _order(list(players), turn):
            players[name].turn()
    return {name: _result(player, suite.turns, *before[name]) for name, player in players.items()}


def _result(player: Player, turns: int, seconds: float, cpu: float) -> trials.Result:
    if player.failed:
        return trials.Result(error=trials.last_words(player.log))
    messages = turns * player.task.messages
    return trials.Result(rate=messages / (player.seconds - seconds), cpu_us=(player.cpu - cpu) * 1e6 / messages)


def _order(names: Sequence[str], turn: int) -> Sequence[str]:
    """Return another order in each turn, so that each contender comes first and last as often as the others."""
    start = turn // 2 % len(names)
    order = [*names[start:], *names[:start]]
    return order[::-1] if turn % 2 else order


def _fill(tasks: Sequence[Task], turns: int) -> None:
    """Publish the messages of the next turns to all queues in alternation, so that the broker treats all alike."""
    with publishing(tasks[0].url) as publisher:
        publisher.publish_many(_messages(tasks, turns), window=WINDOW, timeout=PATIENCE)


def _messages(tasks: Sequence[Task], turns: int) -> Iterator[Message]:
    for number in range(turns * tasks[0].messages):
        for task in tasks:
            yield message(task, number)


def _player(stack: ExitStack, node: Node, suite: Suite, contender: Contender, number: int) -> Player:
    given = contender.task(suite.task, url=node.url(), queue=f"bench.{secrets.token_hex(4)}")
    task = replace(given, turns=number * suite.turns)
    stack.enter_context(prepared(task, bare_loop=False, filled=False))
    child, log = stack.enter_context(trials.spawned(contender.module, task))
    return Player(task, child, log)
