"""Counting walks: which functions run for one more message, and by which name they count."""

import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

from tests.bench.walks.counting import Function, Part, function_of, walk
from tests.bench.walks.running import WALKS, Walk, counted
from tests.tooling.filled import Own

PACKAGE = Path("/project/retrying")
ALLOWED = {"publish": (12, 66), "arrival": (12, 49), "retry": (25, 171), "parked": (29, 217)}
"""Modules and functions of each walk, on the database with more of them. Lower it with each one; never raise it."""
NESTED = """
class Codec:
    limit = 5

    def encode(self, rows):
        list(str(row) for row in rows)
        return [row for row in rows]

    def decode(self):
        def inner():
            list(list(row for row in rows) for rows in [[1]])
        return inner

first, second = lambda: 1, \\
    lambda: 2
"""


def codes(text: str, file: str = "core/codec.py") -> list[CodeType]:
    """Return the code of a module, and of all that is nested in it."""
    found = [compile(text, str(PACKAGE / file), "exec")]
    for code in found:
        found += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found


def functions(text: str) -> set[Function]:
    return {function for code in codes(text) if (function := function_of(code, PACKAGE))}


def calls(*names: str) -> list[Function]:
    """Write a call as "module:function"."""
    pairs = (name.split(":") for name in names)
    return [Function(module=module, name=function) for module, function in pairs]


def test_generators_and_comprehensions_count_as_their_function() -> None:
    assert {function.name for function in functions(NESTED) if "lambda" not in function.name} == {
        "Codec.encode",
        "Codec.decode",
        "Codec.decode.<locals>.inner",
    }


def test_two_lambdas_of_one_module_are_two_functions() -> None:
    assert {function.name for function in functions(NESTED) if "lambda" in function.name} == {
        "<lambda>:14",
        "<lambda>:15",
    }


@pytest.mark.parametrize(
    ("file", "module"),
    [("core/codec.py", "core.codec"), ("core/__init__.py", "core"), ("__init__.py", "retrying"), ("conf.py", "conf")],
)
def test_a_module_is_named_below_its_package(file: str, module: str) -> None:
    _, code = codes("def publish(): ...", file)

    assert function_of(code, PACKAGE) == Function(module=module, name="publish")


@pytest.mark.parametrize("file", ["/project/retrying_more/codec.py", "<string>", "/usr/lib/python3/json/decoder.py"])
def test_code_of_other_packages_and_generated_code_is_not_counted(file: str) -> None:
    _, code = codes("def publish(): ...")

    assert function_of(code.replace(co_filename=file), PACKAGE) is None


def test_functions_called_once_per_message_are_the_walk() -> None:
    message = calls("handler:publish", "outbox:insert", "outbox:insert", "handler:sent", "outbox:delete")

    assert walk(message * 2, message * 6, more=4) == [
        Part(module="handler", functions=("publish", "sent")),
        Part(module="outbox", functions=("insert", "delete")),
    ]


def test_functions_called_by_a_clock_are_not_in_the_walk() -> None:
    clock, message = calls("watch:turn"), calls("handler:publish")

    assert walk(clock * 10 + message * 2, clock * 13 + message * 12, more=10) == [
        Part(module="handler", functions=("publish",))
    ]


@pytest.mark.parametrize(("batches", "counts"), [(4, False), (5, True), (10, True)])
def test_code_that_runs_once_per_two_messages_is_counted(batches: int, counts: bool) -> None:
    assert bool(walk([], calls("records:write") * batches, more=10)) is counts


RECORDED = """
from pathlib import Path
from threading import Thread
from tests.bench.walks.profiler import Profiler

scope = {}
exec(compile("def one():\\n    return 1\\n\\ndef two():\\n    one()\\n", "/made/made.py", "exec"), scope)
profiler = Profiler(Path("/made"))
with profiler.recording():
    scope["two"]()
    thread = Thread(target=scope["one"])
    thread.start()
    thread.join()
scope["one"]()
print([f"{one.module}:{one.name}" for one in profiler.taken()], profiler.taken())
"""


def test_the_profiler_counts_this_thread_and_threads_started_later() -> None:
    # In an interpreter of its own, like a walk: one that had run other tests did not return on Python 3.11.2.
    ended = subprocess.run(
        [sys.executable, "-c", RECORDED],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ended.stdout, ended.stderr) == ("['made:two', 'made:one', 'made:one'] []\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("one", WALKS, ids=lambda one: one.name)
def test_no_walk_exceeds_its_limits(one: Walk, broker_url: str, own_database: Own) -> None:
    parts, error = counted(broker_url, one, own_database)
    modules, functions = len(parts), sum(len(part.functions) for part in parts)
    most_modules, most_functions = ALLOWED[one.name]

    assert error == ""
    assert modules <= most_modules
    assert functions <= most_functions, "\n".join(f"{part.module}: {', '.join(part.functions)}" for part in parts)
