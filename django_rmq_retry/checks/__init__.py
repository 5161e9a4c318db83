"""System checks: everything that can be known of a project without its broker."""

from django_rmq_retry.checks import once, settings, topology

__all__ = ["once", "settings", "topology"]
