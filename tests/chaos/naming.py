"""The names of messages: each says itself which lane it is on and what its handler shall do with it."""

from dataclasses import dataclass

HOPELESS, STUBBORN, POISON, SLOW, HOSTILE = "h", "x", "p", "s", "w"
NOT_TO_BE_HANDLED = frozenset({HOPELESS, STUBBORN, POISON, HOSTILE})
"""Who is named so may be parked; nobody else may, where no database is needed."""
PLAIN_DOTS = 2


@dataclass(frozen=True, slots=True)
class Name:
    """``lane.life.number``, then the plan where there is one, then the key where order counts."""

    lane: str
    life: str
    number: int
    plan: str = ""
    key: str = ""

    @property
    def fails(self) -> int:
        """How many attempts fail before one succeeds."""
        return int(self.plan[1:]) if self.plan[:1] == "f" else 0

    def __str__(self) -> str:
        text = f"{self.lane}.{self.life}.{self.number}"
        if self.key:
            return f"{text}.{self.plan or '-'}.{self.key}"
        return f"{text}.{self.plan}" if self.plan else text


def read(text: str) -> Name:
    """What a name says; ValueError where it is none of ours."""
    lane, life, number, *rest = text.split(".")
    plan = rest[0] if rest and rest[0] != "-" else ""
    return Name(lane, life, int(number), plan, rest[1] if rest[1:] else "")


def plain(text: str) -> bool:
    """Whether it has no plan; asked a million times."""
    return text.count(".") == PLAIN_DOTS


def lane_of(text: str) -> str:
    return text.partition(".")[0]
