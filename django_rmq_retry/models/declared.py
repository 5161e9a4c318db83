"""What the project has declared on a broker: remembered, so that a queue whose handler is gone stays in sight."""

import hashlib

from django.db import models


class Declared(models.Model):
    """One queue or exchange on one virtual host of one broker."""

    digest = models.CharField(max_length=64, editable=False)
    """Of all that names it: some databases take names for equal that differ in case."""
    project = models.CharField(max_length=255)
    broker = models.CharField(max_length=255)
    """The name of its cluster, or its hosts; never a password."""
    vhost = models.CharField(max_length=255)
    kind = models.CharField(max_length=8)
    """``queue`` or ``exchange``."""
    name = models.CharField(max_length=255)
    role = models.CharField(max_length=16, blank=True)
    home = models.CharField(max_length=255, blank=True)
    """The work queue to which a waiting, suspects' or parked queue belongs, if to one only."""
    arguments = models.JSONField(default=dict)
    bindings = models.JSONField(default=list)
    """Of a queue: source, key and arguments of each."""
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    version = models.CharField(max_length=32, blank=True)
    """Of this package, when it was declared last."""

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["digest"], name="rmq_declared_once"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @staticmethod
    def digest_of(*names: str) -> str:
        """Of project, broker, virtual host, kind and name."""
        return hashlib.sha256("\0".join(names).encode()).hexdigest()
