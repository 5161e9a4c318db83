"""The words of the business by which people find a message: as its handler names them, or none."""

import logging
from collections.abc import Mapping

from django_rmq_retry import registry
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.parking import Parked
from django_rmq_retry.core.subscription import Intake, Subscription
from django_rmq_retry.runtime.keying import texts

log = logging.getLogger("django_rmq_retry")


class Keys:
    """Asks the project's handlers; nothing they do keeps a message from being recorded."""

    def __init__(self) -> None:
        intakes = registry.intakes()
        self._intakes: Mapping[str, Intake] = {intake.queue.name: intake for intake in intakes}
        self._named: Mapping[str, Subscription] = {one.name: one for intake in intakes for one in intake.subscriptions}
        self._any = any(one.keys for one in self._named.values())

    def of(self, parked: Parked) -> list[str]:
        """At most 20, each once; none of a body that cannot be decoded."""
        if not self._any:
            return []
        message = Delivery(
            queue=parked.queue,
            body=parked.body,
            raw=parked.raw,
            exchange=parked.exchange,
            routing_key=parked.routing_key,
        )
        try:
            subscription = self._named.get(parked.handler) or self._chosen(message)
            if subscription is None or subscription.keys is None:
                return []
            message.data = subscription.codec.decode(message.body, message.properties)
            return texts(subscription.keys(message))
        except BaseException as error:  # noqa: BLE001 - a function of the project's, and a body of anybody's
            log.info("No business keys of a message of %r: %s", parked.queue, type(error).__name__)
            return []

    def _chosen(self, message: Delivery) -> Subscription | None:
        intake = self._intakes.get(message.queue)
        return None if intake is None else intake.choose(message)
