"""The processes under fire: each is started anew whenever it ends, as systemd would do it, until it is stopped."""

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
"""Nothing of the fleet outlives the run, not even what stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a process is for, and how it is started."""

    name: str
    words: Sequence[str]
    kind: str
    """consumer, producer, relay or operator."""
    proxied: bool = False
    """Whether it reaches broker and database through the proxies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """One process that ended."""

    role: str
    code: int
    told: bool
    """Whether we had asked it to, or killed it."""


class Actor:
    """One role, played by one process after another."""

    def __init__(self, role: Role, folder: Path, environment: Callable[[Role], Mapping[str, str]]) -> None:
        self.role = role
        self.exits: list[Exit] = []
        self._environment = environment
        self._log = folder / "logs" / f"{role.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 0
        self._wanted = False
        self._told = False
        self._due = self._started = 0.0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def age(self) -> float:
        """Seconds since it was started last."""
        return time.monotonic() - self._started if self.running else 0.0

    def start(self) -> None:
        self._wanted, self._told, self._started = True, False, time.monotonic()
        self._lives += 1
        own = {"CHAOS_NAME": self.role.name, "CHAOS_LIFE": str(self._lives), "PYTHONPATH": str(ROOT)}
        # Who is killed every few seconds must not compile everything anew each time.
        own["PYTHONDONTWRITEBYTECODE"] = ""
        env = {**os.environ, **self._environment(self.role), **own}
        command = [*BOUND_TO_US, sys.executable, "-m", *self.role.words]
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                command, env=env, cwd=ROOT, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )

    def keep(self) -> None:
        """Note that it ended, and start it anew a moment later."""
        if not self._wanted or self.running:
            return
        if self._process is not None:
            self._note()
            self._due = time.monotonic() + AGAIN
        if time.monotonic() >= self._due:
            self.start()

    def signal(self, sign: signal.Signals) -> None:
        """A signal that ends it is one it was told to end by."""
        if self._process is not None and self.running:
            self._told = self._told or sign in {signal.SIGKILL, signal.SIGTERM}
            self._process.send_signal(sign)

    def ask(self) -> None:
        """To end, and not to come back."""
        self._wanted = False
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)

    def ended(self) -> int:
        """Its exit code after `ask`; killed where it does not end."""
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
        self.exits.append(Exit(role=self.role.name, code=code, told=self._told))


@dataclass(slots=True)
class Fleet:
    """All of them."""

    actors: list[Actor] = field(default_factory=list)

    def of(self, *kinds: str) -> list[Actor]:
        return [actor for actor in self.actors if actor.role.kind in kinds]

    def pick(self, chance: random.Random, *kinds: str) -> Actor:
        return chance.choice(self.of(*kinds))

    def keep(self) -> None:
        for actor in self.actors:
            actor.keep()

    def rest(self, seconds: float) -> None:
        """Let time pass while every process is kept alive."""
        deadline, pause = time.monotonic() + seconds, Event()
        while (left := deadline - time.monotonic()) > 0:
            self.keep()
            pause.wait(min(STEP, left))

    def stop(self, *kinds: str) -> dict[str, int]:
        """Ask those of a kind to end; their exit codes."""
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
