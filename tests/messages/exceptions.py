"""Exceptions of every kind, raised in code of this file, which counts as the project's here."""

from collections.abc import Callable
from types import FunctionType


class BankDown(Exception):
    """The bank does not answer."""


class Unprintable(Exception):
    """Has no text, no causes and no module."""

    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise RuntimeError("no cause either")

    @property
    def __traceback__(self) -> None:  # type: ignore[override]
        raise RuntimeError("no traceback either")

    def __str__(self) -> str:
        raise ValueError("no text")


def own(file: str) -> bool:
    return file == own.__code__.co_filename


def caught(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def ask() -> None:
    raise TimeoutError("3 s")


def post() -> None:
    try:
        ask()
    except TimeoutError as error:
        raise BankDown("no answer") from error


def deep(steps: int) -> None:
    if steps:
        deep(steps - 1)
    else:
        post()


def circle() -> BaseException:
    one, two = caught(ask), caught(post)
    one.__cause__, two.__cause__ = two, one
    return two


def members(*kinds: type[Exception]) -> BaseException:
    def act() -> None:
        raise ExceptionGroup("several", [kind("x") for kind in kinds])

    return caught(act)


def syntax() -> None:
    compile("def (:", "\udcff\0.py", "exec")


def odd_names() -> BaseException:
    """From a function whose name no header could hold, in a module that says nothing of itself."""
    code = compile("def f():\n 1/0", "/srv/bank/\udcff.py", "exec").co_consts[0]
    odd = code.replace(co_name="\udcff\0", co_qualname="\udcff\0" * 300)
    return caught(FunctionType(odd, {"__name__": 7}))
