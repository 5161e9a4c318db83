"""A place in the admin for the page that shows how everything is doing now. It has no table."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class LiveStatus(models.Model):
    """Stands for the page and carries its permission."""

    class Meta:
        managed = False
        verbose_name = _("live status")
        verbose_name_plural = _("live status")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(_("live status"))
