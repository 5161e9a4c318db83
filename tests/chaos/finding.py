"""A violated invariant, as the judge's rules report it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A violated invariant, named by the letters and numbers of its rules."""

    rule: str
    said: str


def finding_of(said: str, names: Iterable[str]) -> Iterator[Finding]:
    """Yield one finding for all messages of a kind, with the first few names."""
    some = sorted(names)
    if some:
        rule, _, words = said.partition(": ")
        more = f" and {len(some) - EXAMPLES} more" if len(some) > EXAMPLES else ""
        yield Finding(rule=rule, said=f"{words}: {', '.join(some[:EXAMPLES])}{more}")
