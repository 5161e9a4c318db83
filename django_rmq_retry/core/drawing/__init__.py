"""Drawings of a topology, as text for people, other programs and the broker itself: pure functions of values."""

from django_rmq_retry.core.drawing.definitions import definitions
from django_rmq_retry.core.drawing.mermaid import mermaid
from django_rmq_retry.core.drawing.shape import Shape
from django_rmq_retry.core.drawing.svg import svg
from django_rmq_retry.core.drawing.text import text

__all__ = ["Shape", "definitions", "mermaid", "svg", "text"]
