"""Which messages were handled, by handlers that run once for each: written in the transaction of what they did."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class InboxEntry(models.Model):
    """One message that one handler has handled."""

    key = models.UUIDField(primary_key=True)
    """Of the handler and the message's name, digested: an index over 16 bytes whatever the names are."""
    handler = models.CharField(_("handler"), max_length=255)
    name = models.CharField(_("message"), max_length=255)
    digest = models.UUIDField()
    """Of the body: the same name with other contents is another message, and a person has to look."""
    handled_at = models.DateTimeField(_("handled"))

    class Meta:
        verbose_name = _("handled message")
        verbose_name_plural = _("handled messages")
        default_permissions = ()
        indexes = (models.Index(fields=["handled_at"], name="rmq_inbox_handled"),)

    def __str__(self) -> str:
        return f"{self.handler} {self.name}"
