"""Values of argument tables as RabbitMQ compares them and writes them into its sentences."""

from collections.abc import Mapping
from decimal import Decimal

from django_rmq_retry.embedded.engine.refusals import Refused, unequal

LONGEST = 315_360_000_000
"""Ten years in milliseconds: the longest time that RabbitMQ takes."""
_INT32 = range(-(2**31), 2**31)


def type_name(value: object) -> str:
    """The name of an AMQP type in RabbitMQ's sentences."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if value in _INT32 else "long"
    names = {str: "longstr", bytes: "binary", float: "double", Decimal: "decimal", list: "array", dict: "table"}
    return names.get(type(value), "void" if value is None else "timestamp")


def shown_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def same(one: object, other: object) -> bool:
    """Equality of table values: text and bytes are one, numbers of any width are one, true and a decimal are not 1."""
    if isinstance(one, (bool, Decimal, list, dict)) or isinstance(other, (bool, Decimal, list, dict)):
        return identical(one, other)
    return plain(one) == plain(other)


def identical(one: object, other: object) -> bool:
    """Equality in value and type, which tells bindings apart; Python takes 1, True and 1.0 for one."""
    if type(one) is not type(other):
        return False
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(identical(one[key], other[key]) for key in one)
        case list(), list():
            return len(one) == len(other) and all(map(identical, one, other))
    return one == other


def plain(value: object) -> object:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def check_equal(argument: str, thing: str, *, current: object, received: object) -> None:
    """Refuse a field of a declaration that is not what it was."""
    if not same(current, received):
        raise unequal(argument, thing, f"'{shown_value(received)}'", f"'{shown_value(current)}'")


def check_arguments(
    names: tuple[str, ...], thing: str, *, current: Mapping[str, object], received: Mapping[str, object]
) -> None:
    """Refuse the first of these arguments that is not what it was."""
    for name in names:
        if name in current and name in received:
            check_equal(name, thing, current=current[name], received=received[name])
        elif name in current or name in received:
            raise unequal(name, thing, _told(received, name), _told(current, name))


def _told(arguments: Mapping[str, object], name: str) -> str:
    if name not in arguments:
        return "none"
    value = arguments[name]
    return f"the value '{shown_value(value)}' of type '{type_name(value)}'"


def integer_problem(value: object) -> str | None:
    """Why RabbitMQ does not take a value as a number that counts."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f'"expected integer, got {type_name(value)}"'
    return f"{{value_negative,{value}}}" if value < 0 else None


def time_problem(value: object) -> str | None:
    problem = integer_problem(value)
    if problem is None and isinstance(value, int) and value > LONGEST:
        return f"{{value_too_large,{value}}}"
    return problem


def lease_problem(value: object) -> str | None:
    return "{value_zero,0}" if value == 0 and not isinstance(value, bool) else time_problem(value)


def milliseconds(expiration: str) -> int:
    """Read the property `expiration`, or refuse the message."""
    digits = expiration[1:] if expiration[:1] in "+-" else expiration
    length = len(digits) - len(digits.lstrip("0123456789"))
    rest = digits[length:]
    if not length:
        raise _invalid(expiration, "no_integer")
    if rest:
        raise _invalid(expiration, f'{{leftover_string,"{rest}"}}')
    value = int(expiration[:20])
    problem = time_problem(value)
    if problem:
        raise _invalid(expiration, problem)
    return value


def _invalid(expiration: str, why: str) -> Refused:
    return Refused(406, f"invalid expiration '{expiration}': {why}")
