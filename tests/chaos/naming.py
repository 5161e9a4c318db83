"""The names of messages: each holds its lane and the plan for its handler."""

import json
from dataclasses import dataclass

HOPELESS, STUBBORN, POISON, SLOW, HOSTILE = "h", "x", "p", "s", "w"
NOT_TO_BE_HANDLED = frozenset({HOPELESS, STUBBORN, POISON, HOSTILE})
"""Plans with which a message may be parked; in lanes without a database, no other message may be."""
PLAIN_DOTS = 2
TASKS = "chaos.task"


@dataclass(frozen=True, slots=True)
class Name:
    """``lane.life.number``, then the plan if there is one, then the ordering key in ordered lanes."""

    lane: str
    life: str
    number: int
    plan: str = ""
    key: str = ""

    @property
    def fails(self) -> int:
        """Return the number of attempts that fail before one succeeds."""
        return int(self.plan[1:]) if self.plan[:1] == "f" else 0

    def __str__(self) -> str:
        text = f"{self.lane}.{self.life}.{self.number}"
        if self.key:
            return f"{text}.{self.plan or '-'}.{self.key}"
        return f"{text}.{self.plan}" if self.plan else text


def read(text: str) -> Name:
    """Parse a name. Raise ValueError for a message of another publisher."""
    lane, life, number, *rest = text.split(".")
    plan = rest[0] if rest and rest[0] != "-" else ""
    return Name(lane, life, int(number), plan, rest[1] if rest[1:] else "")


def plain(text: str) -> bool:
    """Return True if a name has no plan; called a million times."""
    return text.count(".") == PLAIN_DOTS


def record_name(queue: str, message_id: str, body: bytes) -> str:
    """Return the name of a recorded message: its id, or the first argument of a task, whose id the product gives."""
    return task_name(body) if queue == TASKS else message_id


def task_name(body: bytes) -> str:
    name: str = json.loads(body)["args"][0]
    return name


def lane_of(text: str) -> str:
    return text.partition(".")[0]
