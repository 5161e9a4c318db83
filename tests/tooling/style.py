"""Measures of style that a linter does not take."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(text: str) -> Iterator[Function]:
    """Every function and method of a file."""
    return (node for node in ast.walk(ast.parse(text)) if isinstance(node, Function))


def length(function: Function) -> int:
    """Its lines from `def` to the last."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def positional(function: Function) -> int:
    """How many arguments may be given by position, without self and cls."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def sleeps(text: str) -> list[int]:
    """The lines that call sleep, of whatever module; sleep(0) only gives way to others."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return sorted(call.lineno for call in calls if called(call) == "sleep" and not gives_way(call))


def called(call: ast.Call) -> str | None:
    """The last part of the name that is called."""
    return getattr(call.func, "attr", None) or getattr(call.func, "id", None)


def gives_way(call: ast.Call) -> bool:
    """Whether its only argument is a literal 0."""
    return [argument.value for argument in call.args if isinstance(argument, ast.Constant)] == [0]


def comments(text: str) -> int:
    """How many lines hold a comment that is not meant for a tool."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = (token.string for token in tokens if token.type == tokenize.COMMENT)
    return sum(not comment.startswith(("# noqa", "# type:", "#!")) for comment in found)


def python_files(*folders: Path) -> list[Path]:
    """The Python files below these folders, without migrations."""
    return [path for folder in folders for path in sorted(folder.rglob("*.py")) if "migrations" not in path.parts]
