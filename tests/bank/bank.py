"""The bank's commands, its consumer, and a teller process that plays scenes.

The bank is a project with its own settings, so its models are never loaded in the tests' Django.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.tooling import processes

ROOT = Path(__file__).parents[2]
MANAGE = ROOT / "testproject" / "manage.py"
PATIENCE = 30


def environment(database: Path, broker_url: str = "amqp://127.0.0.1:1") -> dict[str, str]:
    """Return the bank's environment, without variables that control the tests."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("RMQ_", "BANK_", "DATABASE_"))}
    return ours | {
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        "PYTHONPATH": str(ROOT),
        "DATABASE_URL": f"sqlite:///{database}",
        "RMQ_URL": broker_url,
        # Parked messages stay in their queue, where the tests read them.
        "RMQ_RECORDS": "false",
        "BANK_CHARGE_WAIT": "0.2",
        "BANK_CASH_WAIT": "0.5",
        "BANK_LEDGER_WAIT": "0.1",
    }


def manage(env: dict[str, str], *words: str) -> str:
    """Run one of the bank's commands and return its output."""
    done = processes.run([sys.executable, str(MANAGE), *words], env=env)
    if done.returncode:
        raise AssertionError(f"manage.py {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return str(done.stdout)


class Bank:
    """One bank with its database and its virtual host."""

    def __init__(self, folder: Path, env: dict[str, str], teller: "processes.Started") -> None:
        self.env = env
        self.log = folder / "consumer.log"
        self._teller = teller

    def play(self, scene: str, **parts: object) -> Any:
        """Play a scene of scenes.py in the teller process."""
        assert self._teller.stdin is not None
        assert self._teller.stdout is not None
        self._teller.stdin.write(json.dumps([scene, parts]) + "\n")
        self._teller.stdin.flush()
        told = self._teller.stdout.readline()
        assert told, f"The teller has gone while playing {scene}"
        answer = json.loads(told)
        assert "failed" not in answer, answer["failed"]
        return answer["answer"]

    def manage(self, *words: str) -> str:
        return manage(self.env, *words)

    @contextmanager
    def consuming(self) -> Iterator[None]:
        """Run a consumer during the test; it must exit with 0 on SIGTERM."""
        with self.log.open("ab") as log:
            command = [sys.executable, str(MANAGE), "rmq_consume", "--threads", "4", "--json-logs"]
            child = processes.start(command, env=self.env, stdout=log, stderr=log)
            try:
                yield
            finally:
                child.terminate()
                code = child.wait(PATIENCE)
        assert code == 0, self.log.read_text()

    def attempts(self, verdict: str, handler: str) -> list[dict[str, Any]]:
        """The log lines of the consumer on attempts with this verdict, by the function's name; "-" where none ran."""
        whole, _, _being_written = self.log.read_text().rpartition("\n")
        lines = [json.loads(line) for line in whole.splitlines()]
        name = handler if handler == "-" else f"testproject.payments.handlers.{handler}"
        return [line for line in lines if (line.get("event"), line.get("handler")) == (verdict, name)]


@contextmanager
def bank_in(folder: Path, env: dict[str, str]) -> Iterator[Bank]:
    """Make a bank with its teller, on an existing database."""
    command = [sys.executable, "-m", "tests.bank.teller"]
    with processes.start(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield Bank(folder, env, child)
        finally:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(PATIENCE)
