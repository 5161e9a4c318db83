"""The task of one trial, passed from the benchmark to the process that runs it.

The bare contenders import it too, so it must import only the standard library.
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Literal

VARIABLE = "RMQ_BENCH"
RETRY_DELAY = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One trial: `skip` messages to warm up, then `messages` that count."""

    url: str = ""
    queue: str = ""
    kind: Literal["classic", "quorum"] = "classic"
    messages: int = 1
    skip: int = 0
    threads: int = 1
    prefetch: int = 100
    window: int = 0
    turns: int = 0
    """The number of turns, of `messages` each: the process stops itself after each, and after the warm-up."""
    flaky: bool = False
    """True if every message fails once."""
    database: str = ""
    """Django's settings of a migrated database, as JSON; if empty, nothing is recorded."""
    kept: bool = True
    """True if database connections are kept between messages; Django's default is one per message."""
    does: str = ""
    """The work of its handler in the database; none if empty."""
    side_by_side: int = 0
    """The number of async handlers that run at once; 0 for plain handlers."""
    waits: float = 0.0
    """The seconds that an async handler waits."""
    begins: bool = False
    """True if a message counts as its async handler begins."""
    watched: str = ""
    """The telemetry that is on: "metrics" or "traces"; none if empty."""
    port: int = 0
    """The port of its metrics; any free one if 0."""
    idle_handlers: int = 0
    """The number of further handlers of its queue, which take no message."""
    messages_by: str = ""
    """The module that makes its messages, if they are not plain JSON."""
    told: int = -1
    """The file descriptor to which marks are written."""

    @classmethod
    def given(cls) -> "Task":
        """Return the task of this process."""
        return cls(**json.loads(os.environ[VARIABLE]))

    def environment(self, told: int) -> dict[str, str]:
        """Return the environment variables that pass the task to a process."""
        # Compiled like installed packages, whatever PYTHONDONTWRITEBYTECODE is in the shell.
        own = {"PYTHONDONTWRITEBYTECODE": "", VARIABLE: json.dumps(asdict(replace(self, told=told)))}
        return {**os.environ, **own}

    @property
    def total(self) -> int:
        return self.skip + self.messages

    def mark_of(self, turn: int) -> str:
        """The mark at the end of a turn; turn 0 is the warm-up."""
        return f"turn {turn}"

    @property
    def wait_queue(self) -> str:
        """The queue in which rejected messages of the bare loop wait."""
        return f"{self.queue}.wait"


def payload(number: int) -> dict[str, object]:
    """A small payment, about 200 bytes of JSON."""
    return {
        "number": number,
        "payment": "0f8e7d6c-5b4a-4392-8170-6f5e4d3c2b1a",
        "from": "DE89370400440532013000",
        "to": "FR1420041010050500013M02606",
        "amount": "249.99",
        "currency": "EUR",
        "purpose": "invoice 2024-118, second reminder",
    }
