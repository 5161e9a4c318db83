"""Found by itself, as every project's."""

import os
from importlib import import_module
from pathlib import Path

from django_rmq_retry import Delivery, Queue, handler
from tests.faults.handlers import PARKED, POLICIES, QUEUE, Act

if os.environ.get("FAULTS_BREAK") == "import":
    import_module("tests.faults.project.gone")

act = Act(Path(os.environ["FAULTS_FOLDER"]))


@handler(Queue(QUEUE), policy=POLICIES["ladder"], park=PARKED)
def perform(message: Delivery) -> None:
    act(message)
