"""Measures of style that the linter lacks."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(text: str) -> Iterator[Function]:
    """Yield every function and method of a file."""
    return (node for node in ast.walk(ast.parse(text)) if isinstance(node, Function))


def length(function: Function) -> int:
    """The lines of a function from `def` to the last, without its docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def positional(function: Function) -> int:
    """Return the number of positional parameters, without self and cls."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def sleeps(text: str) -> list[int]:
    """Return the lines that call any sleep; sleep(0) only yields to other tasks."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return sorted(call.lineno for call in calls if called(call) == "sleep" and not gives_way(call))


def called(call: ast.Call) -> str | None:
    """Return the last part of the called name."""
    return getattr(call.func, "attr", None) or getattr(call.func, "id", None)


def gives_way(call: ast.Call) -> bool:
    """True if the only argument is a literal 0."""
    return [argument.value for argument in call.args if isinstance(argument, ast.Constant)] == [0]


def comments(text: str) -> int:
    """Return the number of lines with a comment that is not for a tool."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = (token.string for token in tokens if token.type == tokenize.COMMENT)
    return sum(not comment.startswith(("# noqa", "# type:", "#!")) for comment in found)


def python_files(*folders: Path) -> list[Path]:
    """Return the Python files below these folders, without migrations."""
    return [path for folder in folders for path in sorted(folder.rglob("*.py")) if "migrations" not in path.parts]


def late_constants(text: str) -> list[str]:
    """Return the names of constants, written as literals, that stand below a function or class of their module."""
    body = ast.parse(text).body
    first = next((at for at, node in enumerate(body) if isinstance(node, Function | ast.ClassDef)), len(body))
    late = (node for node in body[first:] if isinstance(node, ast.Assign) and _literal(node.value))
    return [target.id for node in late for target in node.targets if isinstance(target, ast.Name)]


def _literal(value: ast.expr) -> bool:
    return all(
        isinstance(node, ast.Constant | ast.Tuple | ast.Load | ast.UnaryOp | ast.USub) for node in ast.walk(value)
    )
