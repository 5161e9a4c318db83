"""Celery: one task, which inserts its row in a transaction, acknowledged afterwards; a pool of threads, no results."""

from typing import Any

from celery import Celery

from django_rmq_retry.messages.celery_tasks import CeleryCall, CeleryTask
from django_rmq_retry.messages.message import Message
from django_rmq_retry.messages.properties import Properties
from tests.bench.task import Task, payload

NAME = "bench.row"


def queues(task: Task) -> dict[str, dict[str, Any]]:
    """Return the queue that the worker consumes, with the arguments with which it declares it."""
    return {task.queue: {"x-queue-type": task.kind}}


def message(task: Task, number: int) -> Message:
    codec, name = CeleryTask(), f"{number:032x}"
    properties = Properties(content_type=codec.content_type, content_encoding="utf-8", delivery_mode=2, message_id=name)
    call = CeleryCall(task=NAME, id=name, args=(payload(number),))
    return Message(body=codec.encode(call), routing_key=task.queue, properties=properties)


def main() -> None:
    from tests.bench.contenders.peers import inserting_in  # noqa: PLC0415 - Django is set up for the measured process only

    task = Task.given()
    insert = inserting_in(task)
    app = Celery("bench", broker=task.url)
    app.conf.update(
        task_default_queue=task.queue,
        task_default_queue_type=task.kind,
        task_ignore_result=True,
        task_acks_late=True,
        worker_prefetch_multiplier=task.prefetch // task.threads,
        broker_connection_retry_on_startup=True,
    )

    def row(_payload: dict[str, Any]) -> None:
        insert()

    app.task(name=NAME)(row)
    pool = ["--pool", "threads", "--concurrency", str(task.threads)]
    app.worker_main(["worker", *pool, "--loglevel", "WARNING", "--without-gossip", "--without-mingle"])


if __name__ == "__main__":
    main()
