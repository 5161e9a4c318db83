"""Keeps one RabbitMQ process and its epmd, and ends both on request or when the owner has ended.

It runs as a script in its own session, so that neither ctrl-C nor a killed test run leaves a node behind.
"""

import json
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event

GRACE = 20.0


def state(pid: int) -> str:
    """Return the process's state as ps shows it: R, S, T, …; Z once it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def alive(pid: int) -> bool:
    """True while the process runs; a zombie does not."""
    return state(pid) not in "ZX"


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, even a stopped one; kill it if it does not end."""
    for sign in (signal.SIGCONT, signal.SIGTERM):
        if process.poll() is None:
            process.send_signal(sign)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def guard(folder: Path, owner: int) -> None:
    """Run what `folder`/node.json names until it ends, the owner ends, or SIGTERM arrives."""
    stopping = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    spec = json.loads((folder / "node.json").read_text())
    with (folder / "node.log").open("ab") as log:
        epmd, server = (
            subprocess.Popen(words, env=spec["env"], cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            if words
            else None
            for words in (spec["epmd"], spec["server"])
        )
    assert server is not None
    (folder / "server.pid").write_text(str(server.pid))
    while server.poll() is None and alive(owner) and not stopping.wait(0.2):
        pass
    end(server)
    if epmd is not None:
        end(epmd)
    if not alive(owner):
        shutil.rmtree(folder, ignore_errors=True)
        (folder.parent / "lock").unlink(missing_ok=True)
        with suppress(OSError):
            folder.parent.rmdir()


if __name__ == "__main__":
    guard(Path(sys.argv[1]), int(sys.argv[2]))
