"""A consumer in its own process: ``python -m tests.faults.worker FOLDER NUMBER``."""

import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import django
from django.conf import settings


def main(folder: Path, number: str) -> int:
    """Consume until a signal arrives or the test process has ended."""
    said = json.loads((folder / f"worker-{number}.json").read_text())
    settings.RMQ_RETRY = said["settings"]
    django.setup()
    logging.basicConfig(level=logging.INFO, format="%(threadName)s %(message)s")
    logging.getLogger("pika").setLevel(logging.WARNING)
    # These imports read the settings.
    from django_rmq_retry.consumer import supervisor  # noqa: PLC0415 - as above
    from tests.consumer.assembly import consumer_of  # noqa: PLC0415 - as above
    from tests.faults import handlers, kill_points  # noqa: PLC0415 - as above

    work_queue = handlers.work_queue(said["policy"], folder, **said["queue"])
    if said["breaks"]:
        way, victim = said["breaks"]
        work_queue = kill_points.WAYS[way](kill_points.Once(folder, victim), work_queue)
    parent = os.getppid()
    orphaned = lambda: None if os.getppid() == parent else "the test is gone"  # noqa: E731
    before = (
        [handlers.work_queue(said["policy"], folder, name=said["before"], **said["queue"])] if said["before"] else []
    )
    made = consumer_of(
        [*before, work_queue],
        threads=said["threads"],
        prefetch=said["prefetch"],
        also=[orphaned],
        shutdown=said["shutdown"],
    )
    told = {"longest_hold": said["longest_hold"], **({} if said["parks"] else {"parks": False})}
    consumer = made.consumer
    consumer._lines = tuple(replace(line, **told) for line in consumer._lines)
    supervisor.listen(consumer.stop)
    return made.run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
