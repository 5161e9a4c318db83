"""What was enqueued as a task, and what it returned."""

from django.db import models


class StoredResult(models.Model):
    """One task, from the moment it is enqueued; what it returned is added as it succeeds.

    Its failed attempts are those of its message, found by its identity.
    """

    id = models.CharField(primary_key=True, max_length=255)
    """The id of the message."""
    identity = models.CharField(max_length=160)
    backend = models.CharField(max_length=255)
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=255)
    priority = models.SmallIntegerField(default=0)
    body = models.BinaryField()
    enqueued_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    """The begin of the attempt that succeeded."""
    finished_at = models.DateTimeField(null=True)
    worker = models.CharField(max_length=255, blank=True)
    answer = models.TextField(blank=True)
    """What the task returned, as JSON in ASCII."""
    requeued = False
    """True for a row that is not stored yet, of a message that an operator has sent again; no column."""

    class Meta:
        default_permissions = ()
        indexes = (models.Index(fields=["expires_at"], name="rmq_result_expires"),)

    def __str__(self) -> str:
        return f"{self.task} {self.id}"
