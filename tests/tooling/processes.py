"""Processes of tests, forked from one that has imported Django already.

A run of the tests starts hundreds of commands, and each would import the same modules for most of a second. So a test
process keeps one interpreter, which imports what needs no settings; each command is a fork of it, with the arguments,
environment, folder and files of its own. Commands that a fork cannot imitate start as usual: see ``forks``.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.tooling.waiting import longer

ROOT = Path(__file__).parents[2]
PRELOADED = (
    "django.contrib.admin",
    "django.contrib.auth.hashers",
    "django.core.management.base",
    "django.core.serializers.json",
    "django.db.models",
    "django.forms",
    "django.template.backends.django",
    "django.test",
    "django_rmq_retry",
    "django_rmq_retry.amqp.declarer",
    "django_rmq_retry.amqp.management_api",
    "django_rmq_retry.amqp.publisher",
    "django_rmq_retry.amqp.source",
    "django_rmq_retry.consumer.consumer",
    "django_rmq_retry.consumer.supervisor",
    "django_rmq_retry.embedded.direct_broker",
    "django_rmq_retry.handlers.registry",
    "django_rmq_retry.messages.masking",
    "django_rmq_retry.telemetry.http",
    "pika",
    "psycopg",
    "pymysql",
    "sqlite3",
    "sqlparse",
    "structlog",
    "zoneinfo",
)
"""Modules that need no settings; those of databases are there or not."""
OWN = ("PYTHONPATH", "PYTHONIOENCODING", "PYTHONDONTWRITEBYTECODE")
"""Variables of Python that a fork obeys; with others that differ a new interpreter starts."""
LONGEST = 1 << 20


def forks(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> bool:
    """Return whether a fork does the same as this command: Python, from the root, with no unusual option."""
    odd = {name for name in environment.keys() | os.environ.keys() if name.startswith("PYTHON")} - set(OWN)
    return (
        sys.platform == "linux"
        and command[0] == sys.executable
        and folder == ROOT
        and not any(environment.get(name) != os.environ.get(name) for name in odd)
        and _parsed(command[1:]) is not None
    )


class Process:
    """A forked command, with what `subprocess.Popen` has that tests use."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        session: bool = False,
    ) -> None:
        self.args = list(command)
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._readers: list[threading.Thread] = []
        theirs: list[int] = []
        self.stdin = _pipe(stdin, 0, theirs, text=text)
        self.stdout = _pipe(stdout, 1, theirs, text=text)
        self.stderr = None if stderr == subprocess.STDOUT else _pipe(stderr, 2, theirs, text=text)
        if stderr == subprocess.STDOUT:
            theirs.append(os.dup(theirs[1]))
        self._ends, given = os.pipe()
        wish = {"command": self.args[1:], "environment": dict(environment), "session": session}
        try:
            _starter().start(json.dumps(wish).encode(), [*theirs, given])
        finally:
            for descriptor in (*theirs, given):
                os.close(descriptor)
        self.pid = int(_read(self._ends))

    def poll(self) -> int | None:
        """The exit code, if the process has ended."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(None if timeout is None else longer(timeout))
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, given: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Send the input, read all output, and wait for the end."""
        read: dict[int, Any] = {}
        streams = [(at, stream) for at, stream in enumerate((self.stdout, self.stderr)) if stream]
        readers = [
            threading.Thread(target=lambda at=at, stream=stream: read.update({at: stream.read()}), daemon=True)
            for at, stream in streams
        ]
        self._readers += readers
        for reader in readers:
            reader.start()
        if self.stdin:
            with suppress(BrokenPipeError):
                if given:
                    self.stdin.write(given)
                self.stdin.close()
        until = None if timeout is None else time.monotonic() + longer(timeout)
        for reader in readers:
            reader.join(None if until is None else max(until - time.monotonic(), 0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if until is None else max(until - time.monotonic(), 0))
        return read.get(0), read.get(1)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        read = any(reader.is_alive() for reader in self._readers)
        for stream in (self.stdin, self.stdout, self.stderr):
            # A process that outlives this one may hold the other end, and close() would wait for the reader.
            if stream and (stream is self.stdin or not read):
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()

    def _ended(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._ends], [], [], timeout)[0]:
                status = _read(self._ends)
                self.returncode = os.waitstatus_to_exitcode(int(status)) if status else -signal.SIGKILL
                os.close(self._ends)
            return self.returncode


Started = Process | subprocess.Popen[Any]


def start(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path = ROOT, session: bool = False, **files: Any
) -> Started:
    """Start a command: as a fork where that does the same, else as an interpreter of its own."""
    if forks(command, env, cwd):
        return Process(command, env, session=session, **files)
    return subprocess.Popen(list(command), env=dict(env), cwd=cwd, start_new_session=session, **files)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    given: Any = None,
    timeout: float | None = 60,
    text: bool = True,
) -> "subprocess.CompletedProcess[Any]":
    """Run a command to its end, with its output."""
    piped = subprocess.PIPE
    with start(command, env=env, stdin=piped, stdout=piped, stderr=piped, text=text) as process:
        try:
            out, err = process.communicate(given, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    assert process.returncode is not None
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


class _Starter:
    """The interpreter that is forked, as this process sees it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
        with theirs:
            command = [sys.executable, "-m", "tests.tooling.processes", str(theirs.fileno())]
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            # Pipes, in whose place each fork has files of its own: what cannot seek may become anything.
            reader, writer = os.pipe()
            try:
                self._process = subprocess.Popen(
                    command, cwd=ROOT, env=env, pass_fds=[theirs.fileno()], stdin=reader, stdout=writer, stderr=writer
                )
            finally:
                os.close(reader)
                os.close(writer)
        atexit.register(self._end)

    def _end(self) -> None:
        """Close the socket, at which the other ends; it does so too if this process is killed."""
        if self.pid == os.getpid():
            self._socket.close()
            self._process.wait()

    def start(self, wish: bytes, files: Sequence[int]) -> None:
        with self._lock:
            socket.send_fds(self._socket, [wish], files)


@cache
def _starter_of(_pid: int) -> _Starter:
    return _Starter()


def _starter() -> _Starter:
    return _starter_of(os.getpid())


def _pipe(wanted: int | IO[Any] | None, number: int, theirs: list[int], *, text: bool) -> IO[Any] | None:
    if wanted == subprocess.PIPE:
        ends = os.pipe()
        mine, other = ends if number else ends[::-1]
        theirs.append(other)
        mode = "r" if number else "w"
        return os.fdopen(mine, mode) if text else os.fdopen(mine, f"{mode}b", -1)
    if wanted == subprocess.DEVNULL:
        theirs.append(os.open(os.devnull, os.O_RDWR))
    else:
        descriptor = number if wanted is None else wanted if isinstance(wanted, int) else wanted.fileno()
        theirs.append(os.dup(descriptor))
    return None


def _read(descriptor: int) -> bytes:
    """One line, of which a pipe gives all or nothing."""
    return os.read(descriptor, 32).strip()


# What follows runs in the interpreter that is forked.


def _parsed(words: Sequence[str]) -> tuple[list[str], str, str, list[str]] | None:
    """The options of warnings, ``-m`` or ``script``, its name and its arguments; None for any other command line."""
    options, rest = [], list(words)
    while len(rest) > 1 and rest[0] == "-W":
        options.append(rest[1])
        rest = rest[2:]
    if len(rest) > 1 and rest[0] == "-m":
        return options, "-m", rest[1], rest[2:]
    if rest and rest[0].endswith(".py"):
        return options, "script", rest[0], rest[1:]
    return None


class _Forked:
    """Serves wishes until its socket ends. In each child ``serve`` returns the wish."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._pipes: dict[int, int] = {}

    def serve(self) -> dict[str, Any] | None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        os.set_blocking(reader, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        while True:
            ready, _, _ = select.select([self._socket.fileno(), reader], [], [])
            if reader in ready:
                with suppress(BlockingIOError):
                    os.read(reader, 4096)
                self._reap()
            if self._socket.fileno() in ready:
                data, files, _, _ = socket.recv_fds(self._socket, LONGEST, 4)
                if not data:
                    return None
                if wish := self._fork(json.loads(data), files):
                    return wish

    def _fork(self, wish: dict[str, Any], files: list[int]) -> dict[str, Any] | None:
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, descriptor in enumerate(files[:3]):
                os.dup2(descriptor, number)
            os.closerange(3, max(*files, *self._pipes.values(), self._socket.fileno(), 64) + 1)
            self._socket.detach()
            return wish
        for descriptor in files[:3]:
            os.close(descriptor)
        self._pipes[pid] = files[3]
        self._report(files[3], pid)
        return None

    def _reap(self) -> None:
        while self._pipes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            pipe = self._pipes.pop(pid)
            self._report(pipe, status)
            os.close(pipe)

    @staticmethod
    def _report(pipe: int, number: int) -> None:
        with suppress(BrokenPipeError):
            os.write(pipe, b"%d\n" % number)


def _become(wish: dict[str, Any], path: list[str]) -> None:
    """Put the command's surroundings in place of the interpreter's own."""
    if wish["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(wish["environment"])
    if "TZ" in os.environ:
        time.tzset()
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")[0]
    # The interpreter's own streams, which nothing has used: others would differ at its end.
    sys.stdin.reconfigure(encoding=encoding)  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding=encoding, line_buffering=os.isatty(1))  # type: ignore[union-attr]
    sys.stderr.reconfigure(encoding=encoding)  # type: ignore[union-attr]
    more = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.path[:] = [str(ROOT), *more, *path]


def _run(wish: dict[str, Any], path: list[str]) -> None:
    _become(wish, path)
    parsed = _parsed(wish["command"])
    assert parsed is not None
    options, kind, name, arguments = parsed
    for option in options:
        sys.warnoptions.append(option)
        warnings.simplefilter(option)  # type: ignore[arg-type]
    sys.argv = [name, *arguments]
    if kind == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(name).parent)
        runpy.run_path(name, run_name="__main__")


def _main(descriptor: int) -> None:
    path = [one for one in sys.path if one not in ("", str(ROOT))]
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=descriptor) as ours:
        wish = _Forked(ours).serve()
    if wish is not None:
        _run(wish, path)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
