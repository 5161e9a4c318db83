"""JSON texts as somebody may write them."""

from random import Random

SCALARS = (
    "true",
    "null",
    "0",
    "-1.10",
    "8.500",
    "1E400",
    "12345678901234567890",
    '""',
    '"a\\"{,"',
    '"\\u0041é\U0001f4a5"',
)
NAMES = ('"a"', '"a"', '"b c"', '"\\u00e9"', '""')
SEEDS = range(300)


def space(chance: Random) -> str:
    return "".join(chance.choices(" \t\r\n", k=chance.choice((0, 0, 1, 3))))


def body(chance: Random, depth: int = 0) -> str:
    """A JSON text as somebody may write it: any spaces, any escapes, names that occur twice."""
    kind = chance.choice("{[" if not depth else "{[s" if depth < 4 else "s")
    if kind == "s":
        return chance.choice(SCALARS)
    entries = []
    for _ in range(chance.randrange(4)):
        name = f"{chance.choice(NAMES)}{space(chance)}:" if kind == "{" else ""
        entries.append(f"{space(chance)}{name}{space(chance)}{body(chance, depth + 1)}{space(chance)}")
    return kind + (",".join(entries) or space(chance)) + ("}" if kind == "{" else "]")
