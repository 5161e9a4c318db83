"""Processes that kill themselves, at the entry or return of a function that the seed chooses.

The functions are those of the package, and the steps of the handlers with batches.
Every few seconds a process chooses one of the functions that processes of its kind have executed before.
"""

import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from threading import Event
from types import CodeType, FrameType
from typing import Any

from tests.chaos.ledger import Ledger, lines, names

PACKAGE = str(Path(__file__).parents[2] / "django_rmq_retry") + os.sep
HERE = str(Path(__file__).parent) + os.sep
STEPS = f"{HERE}project{os.sep}batching.py"
ENTRY, RETURN = "entry", "return"
MOST = 3
"""The process ends at the first, second or third call."""
MONITORED = sys.version_info >= (3, 12)
"""Python 3.11 has only profiling, which slows down every call."""
FATE, ENDED = "fate", "ended"
CALM = "calm"
"""A file that exists when no process may end itself any more."""
PATIENCE = 4.0
"""Seconds after which a process chooses another function."""
WATCHED = 20
"""Functions that must be known before a process chooses one."""


def named(code: CodeType) -> str:
    """Return the name of a function of the package, or of a step of a batch; empty for any other."""
    if not code.co_filename.startswith((PACKAGE, STEPS)):
        return ""
    return f"{code.co_filename.removeprefix(PACKAGE).removeprefix(HERE)}:{code.co_qualname}"


def drawn(known: set[str], seed: str) -> tuple[str, str, int]:
    """Return the function, entry or return, and the number of the call; the same for the same seed."""
    # Each function gets its own random number, so that a new function does not change other choices.
    function = min(known, key=lambda name: random.Random(f"{seed}/{name}").random())
    chance = random.Random(f"{seed}/where")
    return function, chance.choice((ENTRY, RETURN)), chance.randint(1, MOST)


def begin() -> None:
    """Start the sweep in this process; the choice is written to the ledger first."""
    folder, name, life = Path(os.environ["CHAOS_FOLDER"]), os.environ["CHAOS_NAME"], os.environ["CHAOS_LIFE"]
    seed = f"{os.environ['CHAOS_SEED']}/sweep/{name}/{life}"
    Sweep(folder, name, seed=seed, places=os.environ.get("CHAOS_PLACES", "").split(",")).start()


def summary(folder: Path) -> str:
    """Return the summary for the report, with the places if some were chosen."""
    ended = Counter(" ".join(line) for line in lines(folder, ENDED))
    known = {name for census in (folder / "census").iterdir() for name in census.read_text().split()}
    said = (
        f"{ended.total()} processes killed themselves at {len(ended)} places; "
        f"{len(known)} functions of the package were executed"
    )
    places = (f"\n  {place}: {times}" for place, times in sorted(ended.items()))
    return said + ("".join(places) if os.environ.get("CHAOS_PLACES") else "")


class Sweep:
    """The end of one process."""

    def __init__(self, folder: Path, name: str, *, seed: str, places: Sequence[str] = ("",)) -> None:
        # Names such as others-1 and others-2 belong to one kind.
        census = folder / "census" / name.partition("-")[0]
        self._folder, self._calm = folder, folder / CALM
        self._ledger = Ledger(folder, f"sweep-{name}.{os.getpid()}")
        self._known = set(census.read_text().split("\n")) - {""} if census.exists() else set()
        self._census = os.open(census, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._name, self._seed, self._draws, self._places = name, seed, 0, tuple(places)
        self._function, self._where, self._left = "", "", 0
        self._anew: Callable[[], object] = lambda: None
        self.draw()

    def draw(self) -> None:
        """Choose a function; one that is not executed for a while is replaced by another."""
        if len(self._known) < WATCHED:
            return
        # Copied first: other threads add functions meanwhile.
        wanted = {name for name in self._known.copy() if any(word in name for word in self._places)}
        if wanted:
            self._draws += 1
            self.aim(*drawn(wanted - self._met_before() or wanted, f"{self._seed}/{self._draws}"))

    def _met_before(self) -> set[str]:
        """Return the functions that are not wanted again before all others, if only some are wanted at all."""
        return set() if self._places == ("",) else set(names(self._folder, ENDED))

    def aim(self, function: str, where: str, left: int) -> None:
        """End at the `left`-th entry or return of this function."""
        self._function, self._where, self._left = function, where, left
        self._ledger.note(FATE, self._name, function, where, left)
        self._anew()

    def start(self, *, monitored: bool = MONITORED) -> None:
        threading.Thread(target=self._look_after, name="sweep", daemon=True).start()
        if monitored:
            self._monitor(import_module("sys").monitoring)
        else:
            threading.setprofile(self._profiled)
            sys.setprofile(self._profiled)

    def _look_after(self) -> None:
        while not Event().wait(PATIENCE):
            self.draw()

    def met(self, function: str, where: str) -> None:
        """Count a call, and kill the process if it is the chosen one."""
        if function not in self._known:
            self._known.add(function)
            os.write(self._census, f"{function}\n".encode())
        if function == self._function and where == self._where:
            self._left -= 1
            if not self._left and not self._calm.exists():
                self._ledger.note(ENDED, function, where)
                os.kill(os.getpid(), signal.SIGKILL)

    def _monitor(self, monitoring: Any) -> None:
        """Report each function once, and the chosen one at each call."""
        tool, events = monitoring.PROFILER_ID, monitoring.events
        monitoring.use_tool_id(tool, "chaos")
        self._anew = monitoring.restart_events

        def entered(code: CodeType, _offset: int) -> object:
            function = named(code)
            if function:
                self.met(function, ENTRY)
            if function != self._function or not function:
                return monitoring.DISABLE
            if self._where == RETURN:
                # The local event stays active when another function is chosen; `met` compares the names.
                monitoring.set_local_events(tool, code, events.PY_RETURN)
                return monitoring.DISABLE
            return None

        def returned(code: CodeType, _offset: int, _value: object) -> object:
            self.met(named(code), RETURN)
            return None

        monitoring.register_callback(tool, events.PY_START, entered)
        monitoring.register_callback(tool, events.PY_RETURN, returned)
        monitoring.set_events(tool, events.PY_START)

    def _profiled(self, frame: FrameType, event: str, _argument: object) -> None:
        if event in {"call", "return"}:
            function = named(frame.f_code)
            if function:
                self.met(function, ENTRY if event == "call" else RETURN)
