"""From calls to a walk: the functions that run for one more message, and the modules that they are in.

The rule: one process makes a walk with FEW messages and then with MANY, after a warm-up. A function belongs to the walk
if the second phase called it at least `SHARE` times more often for each message that MANY has beyond FEW.

- Both phases last equally long, so a clock calls its functions equally often in both. What a message calls grows by 1 a
  message or more. The share lies in the middle, so neither a late clock nor a lost call changes the figure.
- Messages walk alone: the next one is sent after all timers and batches of the last one have run. A batch therefore
  holds the rows or acks of one message, and batching code counts like all other code.
- A function is a `def` or a lambda in a file of the package; one that is nested in another function counts too.
- Generator expressions and comprehensions count as the function that they are in.
- Generated code, such as the constructor of a dataclass, is in no file and does not count. Neither does a plain
  attribute read.
- Modules are in the order of their first calls. Where two threads run at once, neighbours may swap between two runs.
"""

import inspect
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

SHARE = 0.5
FOLDED = re.compile(r"((\.<locals>)?\.<(genexpr|listcomp|setcomp|dictcomp)>)+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function of the package; `module` is below the package, such as ``core.codec``."""

    module: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The functions of one module that belong to a walk."""

    module: str
    functions: tuple[str, ...]


def function_of(code: CodeType, package: Path) -> Function | None:
    """Return the function that this code belongs to; None for others' code, and for bodies of modules and classes."""
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return None
    file = Path(code.co_filename)
    if not file.is_relative_to(package):
        return None
    parts = file.relative_to(package).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Function(module=module or package.name, name=_name(code))


def walk(few: Sequence[Function], many: Sequence[Function], *, more: int) -> list[Part]:
    """Return the modules whose functions ran for each of `more` messages, in the order of their first calls."""
    before = Counter(few)
    grown = {function: count - before[function] for function, count in Counter(many).items()}
    modules: dict[str, list[str]] = {}
    for function, calls in grown.items():
        if calls >= SHARE * more:
            modules.setdefault(function.module, []).append(function.name)
    return [Part(module=module, functions=tuple(names)) for module, names in modules.items()]


def _name(code: CodeType) -> str:
    name = FOLDED.sub("", code.co_qualname)
    # A module may have several lambdas, all of one name.
    return f"{name}:{code.co_firstlineno}" if name.endswith("<lambda>") else name
