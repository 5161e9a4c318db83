"""Runs the tests on each supported Django, and names aloud each that this machine cannot run.

    python -m tests.tooling.lanes [--main | --all | --pika] [pytest's arguments]

With --main, as for each push, everything but what is marked `long` or `nightly` runs here. Beside it, because tests
wait for brokers and databases, run two other lanes one after the other: what is marked `database` on PostgreSQL, and
the pages, the forms, the migrations, the checks and the texts of commands on the oldest Django. No code here asks for
the version of Django, so another one can differ only there, or by a defect of its own. At last a storm of the suite of
faults runs by itself.

With --all, as for each night, what is `nightly` runs too, and on PostgreSQL what is `long`, the kills between two
steps; also what is marked `database` on MariaDB, without what is `slow`; on the oldest Django and Python everything
that knows Django, without what is `slow`; and on each Django between the oldest and the newest what a push runs on the
oldest.

The output of the other lanes is printed as each one ends.

With --pika only `tests/amqp` runs, on the newest pika that pip finds, pre-releases included.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Event

from tests.tooling import databases, servers

ROOT = Path(__file__).parents[2]
# the interpreters a Django supports, the preferred one first
LANES = {"5.2": ("3.11", "3.12", "3.13", "3.14"), "6.0": ("3.12", "3.13", "3.14"), "6.1": ("3.13", "3.12", "3.14")}
WITHOUT_DJANGO = tuple(
    f"--ignore=tests/{name}"
    for name in (
        *("amqp", "chaos", "consumer", "embedded", "faults", "handlers", "messages", "policies", "topology"),
        *("operators/test_races.py", "parked/test_drainers.py"),
        *("test_architecture.py", "test_layers.py", "test_package.py"),
        *("test_tooling.py", "test_translations.py"),
        *("test_workflows.py",),
    )
)
"""Tests that find the same on every Django: of packages that do not know it, of races in the database, of the code's
shape, of the catalogues and of the tests' own tools. They take half of the time; what is built on those packages still
runs on each Django and Python."""
PAGES = (
    *(
        f"--ignore=tests/admin/test_{name}.py"
        for name in (
            *("approvals", "budgets", "exact_bytes", "keylists"),
            *("nul", "paid_twice", "present_state", "rights"),
        )
    ),
    *(
        f"tests/{name}"
        for name in (
            *("admin", "commands/test_golden.py", "test_checks.py", "test_conf.py"),
            *("test_testing_django.py", "test_translations.py", "upgrading/test_migrations.py"),
        )
    ),
)
"""The tests that run on the oldest Django for each push, and on those between it and the newest each night: how each
page, form and text is made, without the tests that do much with pages which others open too."""
NIGHT = "not long"
"""Selects what runs each night. For a push, pyproject.toml selects."""
CORES = os.cpu_count() or 2
ALL = ("-n", str(CORES * 3), "--dist", "worksteal")
"""The workers of the main lane: more than cores, because tests wait for brokers."""
BESIDE = ("-n", str(CORES + 1), "--dist", "worksteal")
"""The workers of a lane that runs beside the main one."""
EXPECTED = ("-W", "ignore:BlockingConnection is deprecated:DeprecationWarning")
"""pika 1.5 announces the end of the connection that the tests use as a client of their own."""
STORM = (
    *("-n", "0", "-m", "long"),
    "tests/chaos/test_chaos.py::test_a_short_storm_of_faults_loses_nothing_and_doubles_nothing",
)
"""A storm of the chaos suite, which needs the whole machine."""
SUMMARY = re.compile(r"\d+ (passed|failed|errors?|skipped|deselected|warnings?)\b.* in [\d.]+s")
FAULT = re.compile(r"(FAILED|ERROR) tests/\S+|LEFT BEHIND: ")
UNTESTED = re.compile(r"!+ NOT TESTED \((\d+)\) !+")
RUNNING: set["subprocess.Popen[str]"] = set()
INTERRUPTED = Event()
"""Set once this run is interrupted: then no further lane begins."""
NOTHING = 5
"""pytest's exit code when the arguments select no test."""
COLOUR = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one lane."""

    name: str
    summary: str
    code: int
    lacks: tuple[str, ...] = ()
    """What was missing, each with the number of tests that did not run."""
    faults: tuple[str, ...] = ()
    """The lines on each test that failed and on what was left: the end of a long output is what is read."""


def here() -> str:
    """Return the Django of this interpreter, such as 6.1."""
    return ".".join(version("django").split(".")[:2])


def run_tests(name: str, python: str, arguments: list[str], *, beside: bool = False, **environment: str) -> Result:
    """Run pytest and keep its last line; show its output at once, or in one piece if other lanes run beside it."""
    colour = ["--color=yes"] if sys.stdout.isatty() else []
    command = [python, "-m", "pytest", *(BESIDE if beside else ALL), *colour, *arguments]
    summary, count, lacks, faults = "pytest printed nothing", "", list[str](), list[str]()
    # A run starts hundreds of processes, which would otherwise each compile everything again.
    told = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **environment}
    kept: list[str] = []
    show = kept.append if beside else partial(print, end="", flush=True)
    show(f"\n### {name}\n")
    with subprocess.Popen(command, cwd=ROOT, env=told, stdout=subprocess.PIPE, text=True) as run:
        RUNNING.add(run)
        try:
            for line in run.stdout or ():
                show(line)
                plain = COLOUR.sub("", line).strip()
                summary = plain if SUMMARY.search(plain) else summary
                faults += [plain] if FAULT.match(plain) else []
                # The line after such a heading has the reason.
                lacks += [f"not run ({count}): {plain}"] if count else []
                heading = UNTESTED.fullmatch(plain)
                count = heading[1] if heading else ""
        except BaseException:
            run.terminate()
            raise
        finally:
            RUNNING.discard(run)
            print("".join(kept), end="", flush=True)
    return Result(name=name, summary=summary, code=run.returncode, lacks=tuple(lacks), faults=tuple(faults))


def run_beside(*streams: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run streams of lanes at the same time, the lanes of each one after another; return all results in order."""
    with ThreadPoolExecutor(len(streams)) as pool:
        running = [pool.submit(run_each, stream) for stream in streams]
        try:
            return [result for stream in running for result in stream.result()]
        except BaseException:
            INTERRUPTED.set()
            for run in [*RUNNING]:
                run.terminate()
            raise


def run_each(stream: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run lanes one after another, until this run is interrupted."""
    return [lane() for lane in stream if not INTERRUPTED.is_set()]


def run_database(kind: str, arguments: list[str], *, night: bool = False) -> Result:
    """Run the tests marked `database` on this one; its absence is an error if everything is required."""
    known = databases.KINDS[kind]
    with ExitStack() as stack:
        told = {"RMQ_TEST_DATABASE": kind}
        try:
            if servers.wanted(kind):
                told[known.variable] = stack.enter_context(servers.private(kind))
            lack = "" if known.variable in told else known.lack()
        except servers.Broken as broken:
            lack = str(broken)
        if lack:
            required = os.environ.get("RMQ_TEST_REQUIRE") == "all"
            return Result(name=kind, summary=f"NOT RUN: {lack}", code=1 if required else 0)
        which = "database and not long and not nightly"
        if night:
            which = "database" if kind == databases.POSTGRESQL else "database and not slow and not long"
        chosen = ["-m", which, *(arguments or marked("database"))]
        result = run_tests(kind, sys.executable, chosen, beside=True, **told)
    return replace(result, code=0) if result.code == NOTHING else result


def marked(mark: str) -> list[str]:
    """Return the test files that name this mark, so that no worker has to read the others."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if f"mark.{mark}" in file.read_text()]


def run_lane(django: str, arguments: list[str], *, night: bool = False) -> Result:
    """Run one lane in its own venv."""
    found = find_python(django)
    if found.returncode:
        return Result(name=f"Django {django}", summary=f"NOT RUN: {found.stderr.strip()}", code=0)
    python = prepare(f"django-{django}", found.stdout.strip(), f"django=={django}.*")
    told = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    name = f"Django {django} on {told}"
    rooms = WITHOUT_DJANGO
    if not night or django not in (min(LANES), max(LANES)):
        rooms, name = PAGES, name if arguments else f"{name} (pages, migrations, checks and texts only)"
    return run_tests(name, python, ["-m", "not slow and not long and not nightly", *(arguments or rooms)], beside=True)


def find_python(django: str) -> "subprocess.CompletedProcess[str]":
    """Look for an interpreter of this lane."""
    finder = ["sh", str(ROOT / "tests/tooling/find-python.sh"), *LANES[django]]
    return subprocess.run(finder, capture_output=True, text=True, check=False)


def run_next_pika(arguments: list[str]) -> Result:
    """Run the tests of the connection on the newest pika, also on one that pyproject.toml does not allow yet."""
    python = prepare("pika", sys.executable)
    subprocess.run([*pip_into(python), "--pre", "--upgrade", "--no-deps", "pika"], check=True)
    show = [python, "-c", "import importlib.metadata as found; print(found.version('pika'))"]
    newest = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
    if newest == version("pika"):
        return Result(name="next pika", summary=f"NOT RUN: pip finds no pika newer than {newest}", code=0)
    return run_tests(f"pika {newest}", python, ["-m", "not long", *EXPECTED, *(arguments or ["tests/amqp"])])


def prepare(name: str, base: str, *requirements: str) -> str:
    """Return the interpreter of the lane's venv, rebuilt when pyproject.toml changed."""
    venv = ROOT / ".venv-lanes" / name
    python, ready = str(venv / "bin/python"), venv / ".ready"
    if ready.exists() and ready.stat().st_mtime >= (ROOT / "pyproject.toml").stat().st_mtime:
        return python
    subprocess.run([base, "-m", "venv", "--clear", "--without-pip", str(venv)], check=True)
    subprocess.run([*pip_into(python), "--editable", str(ROOT), "--group", "test", *requirements], cwd=ROOT, check=True)
    ready.touch()
    return python


def pip_into(python: str) -> list[str]:
    """Return the start of a command that installs into another interpreter's venv with the pip of this one.

    Only what the tests import is compiled, by them.
    """
    chosen = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    return [*chosen, "install", "--quiet", "--no-compile"]


def main(arguments: list[str]) -> int:
    """Run the lanes; return the exit code of the first one that failed, or 0."""
    if arguments[:1] == ["--pika"]:
        return shown([run_next_pika(arguments[1:])])
    chosen, rest = (arguments[0], arguments[1:]) if arguments[:1] in (["--main"], ["--all"]) else ("", arguments)
    night = chosen == "--all"
    name = f"Django {here()} on Python {sys.version.split()[0]} (main)"
    djangos = [partial(run_lane, django, rest, night=night) for django in LANES if django != here()]
    if not chosen:
        return shown(run_each(djangos))
    kinds = databases.KINDS if night else [databases.POSTGRESQL]
    of_databases = [partial(run_database, kind, rest, night=night) for kind in kinds]
    of_main = partial(run_tests, name, sys.executable, ["-m", NIGHT, *rest] if night else rest)
    results = run_beside([of_main], [*of_databases, *(djangos if night else djangos[:1])])
    results += [] if rest else [run_tests("a storm of faults", sys.executable, [*STORM])]
    return shown(results)


def shown(results: list[Result]) -> int:
    """Print the result of each lane, and return the exit code of the first one that failed."""
    print("\n### Lanes")
    for result in reversed(results):
        print(f"{'!!! ' if result.summary.startswith('NOT RUN') else ''}{result.name}:\n{result.summary}")
        for line in (*result.faults, *result.lacks):
            print(f"!!! {line}")
    return next((result.code for result in results if result.code), 0)


def interrupted(number: int, _frame: object) -> None:
    """End as on an error, so that each process ends those that it started."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupted)
    sys.exit(main(sys.argv[1:]))
