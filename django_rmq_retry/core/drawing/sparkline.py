"""A row of small bars as SVG for a page: its colour is the text's, its words are for those who do not see it."""

from collections.abc import Sequence

from django_rmq_retry.core.drawing.svg import clean

BAR, GAP, HEIGHT, LEAST = 6, 2, 24, 2


def sparkline(counts: Sequence[int], *, title: str, height: int = HEIGHT) -> str:
    """Bars from the oldest to the newest; a count above zero is never drawn as nothing."""
    width = max(len(counts) * (BAR + GAP) - GAP, 1)
    highest = max(counts, default=0)
    bars = "".join(_bar(place, count, highest, height) for place, count in enumerate(counts))
    return (
        f'<svg class="rmq-spark" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'focusable="false"><title>{clean(title)}</title>{bars}</svg>'
    )


def _bar(place: int, count: int, highest: int, height: int) -> str:
    tall = max(round(height * count / highest), LEAST) if count > 0 else 1
    kind = "bar" if count > 0 else "none"
    left = place * (BAR + GAP)
    return f'<rect class="{kind}" x="{left}" y="{height - tall}" width="{BAR}" height="{tall}"/>'
