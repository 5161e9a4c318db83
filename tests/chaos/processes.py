"""The processes under test: each is restarted when it exits, like under systemd, until it is stopped."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

ROOT = Path(__file__).parents[2]
AGAIN = 0.5
GRACE = 40.0
STEP = 0.1
BOUND_TO_US = ("setpriv", "--pdeathsig", "KILL")
"""Kill the process with its parent, even if it is stopped by SIGSTOP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The purpose of a process, and its command line."""

    name: str
    words: Sequence[str]
    kind: str
    """One of consumer, producer, relay, operator."""
    proxied: bool = False
    """True if it connects to broker and database through the proxies."""
    port: int = 0
    """The port of its metrics; 0 if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """One process exit."""

    role: str
    code: int
    requested: bool
    """True if the run had stopped or killed it."""


class Actor:
    """One role, run by one process after another."""

    def __init__(self, role: Role, folder: Path, environment: Callable[[Role], Mapping[str, str]]) -> None:
        self.role = role
        self.exits: list[Exit] = []
        self._environment = environment
        self._log = folder / "logs" / f"{role.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 0
        self._wanted = False
        self._requested = False
        self._due = self._started = 0.0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    @property
    def age(self) -> float:
        """Return the seconds since the last start."""
        return time.monotonic() - self._started if self.running else 0.0

    def start(self) -> None:
        self._wanted, self._requested, self._started = True, False, time.monotonic()
        self._lives += 1
        own = {"CHAOS_NAME": self.role.name, "CHAOS_LIFE": str(self._lives), "PYTHONPATH": str(ROOT)}
        # A process that is killed every few seconds must not compile all modules at each start.
        own["PYTHONDONTWRITEBYTECODE"] = ""
        env = {**os.environ, **self._environment(self.role), **own}
        command = [*BOUND_TO_US, sys.executable, "-m", *self.role.words]
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                command, env=env, cwd=ROOT, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )

    def keep(self) -> None:
        """Record an exit, and restart the process a moment later."""
        if not self._wanted or self.running:
            return
        if self._process is not None:
            self._note()
            self._due = time.monotonic() + AGAIN
        if time.monotonic() >= self._due:
            self.start()

    def signal(self, sign: signal.Signals) -> None:
        """Send a signal; an exit after a terminating signal counts as requested."""
        if self._process is not None and self.running:
            self._requested = self._requested or sign in {signal.SIGKILL, signal.SIGTERM}
            self._process.send_signal(sign)

    def ask(self) -> None:
        """Send SIGTERM, and do not restart the process."""
        self._wanted = False
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)

    def ended(self) -> int:
        """Return the exit code after `ask`; kill the process if it does not exit."""
        if self._process is None:
            return 0
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._note()
        return code

    def _note(self) -> None:
        assert self._process is not None
        code = self._process.wait()
        self._process = None
        self.exits.append(Exit(role=self.role.name, code=code, requested=self._requested))


@dataclass(slots=True)
class Fleet:
    """All processes of a run."""

    actors: list[Actor] = field(default_factory=list)

    def of(self, *kinds: str) -> list[Actor]:
        return [actor for actor in self.actors if actor.role.kind in kinds]

    def pick(self, chance: random.Random, *kinds: str) -> Actor:
        return chance.choice(self.of(*kinds))

    def keep(self) -> None:
        for actor in self.actors:
            actor.keep()

    def rest(self, seconds: float) -> None:
        """Wait, and restart processes that exit meanwhile."""
        deadline, pause = time.monotonic() + seconds, Event()
        while (left := deadline - time.monotonic()) > 0:
            self.keep()
            pause.wait(min(STEP, left))

    def stop(self, *kinds: str) -> dict[str, int]:
        """Stop the processes of the given kinds; return their exit codes."""
        actors = [actor for actor in self.of(*kinds) if actor.running]
        for actor in self.of(*kinds):
            actor.ask()
        return {actor.role.name: actor.ended() for actor in actors}

    def exits(self) -> list[Exit]:
        return [one for actor in self.actors for one in actor.exits]

    def kill(self) -> None:
        for actor in self.actors:
            actor.ask()
            actor.signal(signal.SIGKILL)
            actor.ended()
