"""The model of alerts: who sends them, and which were sent."""

from django.db import models


class AlertWatch(models.Model):
    """The only row: the lease of the process that looks for findings and sends alerts, and what it has sent.

    The holder of the lease alone writes the row, so no second process can send what the row has.
    """

    name = models.CharField(max_length=16)
    holder = models.CharField(max_length=255, blank=True)
    leased_until = models.DateTimeField(null=True, blank=True)
    """If the holder is killed, another process looks after this time."""
    told = models.JSONField(default=dict)
    """For each way, the findings that it has been told of."""

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["name"], name="rmq_alerts_once"),)

    def __str__(self) -> str:
        return self.name
