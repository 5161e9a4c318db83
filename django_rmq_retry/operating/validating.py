"""Whether an edited text is what its content type says; numbers are never rounded on the way."""

import json
from collections import Counter
from decimal import Decimal
from typing import Any, NoReturn

from django.utils.translation import gettext as _

SHOWN = 5


class _Forbidden(ValueError):
    """A constant that JSON does not have."""


def check_json(text: str) -> tuple[list[str], list[str]]:
    """What is wrong with a text as JSON, and what is odd about it, in sentences."""
    twice: Counter[str] = Counter()

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(name for name, _value in found)
        twice.update(name for name, count in counts.items() if count > 1)
        return dict(found)

    try:
        json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=_refuse, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        said = _("Line %(line)s, column %(column)s: this is no JSON (%(problem)s).")
        return [said % {"line": error.lineno, "column": error.colno, "problem": error.msg}], []
    except _Forbidden as error:
        return [_("%(constant)s is no JSON; most readers refuse it.") % {"constant": error}], []
    except (RecursionError, ValueError, ArithmeticError):
        return [_("The JSON is nested too deeply, or holds a number that cannot be read.")], []
    names = ", ".join(list(twice)[:SHOWN])
    return [], [_("These names stand twice in one object: %(names)s.") % {"names": names}] if twice else []


def _refuse(constant: str) -> NoReturn:
    raise _Forbidden(constant)
