"""Found by itself, as every project's."""

import os
from pathlib import Path

from django_rmq_retry import Delivery, Queue, handler
from tests.faults.acting import PARKED, POLICIES, QUEUE, Act

act = Act(Path(os.environ["FAULTS_FOLDER"]))


@handler(Queue(QUEUE), policy=POLICIES["ladder"], park=PARKED)
def perform(message: Delivery) -> None:
    act(message)
