"""What one trial is asked to do, handed from the benchmark to the process that does it.

Imported by the bare contenders too, so it must not pull in more than the standard library.
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Literal

VARIABLE = "RMQ_BENCH"
RETRY_DELAY = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One trial: `skip` messages to get warm, then `messages` that count."""

    url: str = ""
    queue: str = ""
    kind: Literal["classic", "quorum"] = "classic"
    messages: int = 1
    skip: int = 0
    threads: int = 1
    prefetch: int = 100
    window: int = 0
    flaky: bool = False
    """Every message fails once."""
    database: str = ""
    """Django's settings of a database with tables, as JSON; without one nothing is remembered."""
    kept: bool = True
    """Whether connections to it are kept between messages; by itself Django opens one for each."""
    does: str = ""
    """What its handler does in the database; nothing where this is empty."""
    told: int = -1
    """The file descriptor that marks are written to."""

    @classmethod
    def given(cls) -> "Task":
        """The task of this process."""
        return cls(**json.loads(os.environ[VARIABLE]))

    def environment(self, told: int) -> dict[str, str]:
        """What hands it over."""
        # As installed packages are: compiled, whatever the shell says that started the bench.
        own = {"PYTHONDONTWRITEBYTECODE": "", VARIABLE: json.dumps(asdict(replace(self, told=told)))}
        return {**os.environ, **own}

    @property
    def total(self) -> int:
        return self.skip + self.messages

    @property
    def wait_queue(self) -> str:
        """Where the bare loop's rejected messages wait."""
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
