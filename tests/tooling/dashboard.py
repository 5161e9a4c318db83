"""A drawing of the dashboard: its panels at their places, with what Prometheus answers to their queries.

It shows layout and data. Grafana itself draws axes, legends and colours in its own way.
"""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.tooling.node import free_ports

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs" / "monitoring" / "dashboard.json").read_text()
)
COLUMN, LINE, GAP = 50, 30, 6
"""Pixels of a unit of the grid, and between panels."""
LAST_ROW = "Outbox and keys"
"""The row at which the drawing ends."""
COLOURS = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#b877d9", "#5794f2", "#fade2a")
STEPS = {"green": "#1a7f4b", "orange": "#b35c00", "red": "#b3261e"}
STYLE = f"""
body {{ margin: 0; background: #111217; color: #d5d6dc; font: 12px/1.35 'DejaVu Sans', sans-serif }}
#all {{ position: relative; width: {24 * COLUMN}px }}
.panel {{ position: absolute; box-sizing: border-box; background: #181b1f; border: 1px solid #2c3036; padding: 6px 8px;
  overflow: hidden }}
.row {{ position: absolute; font-size: 14px; font-weight: bold; padding: 5px 8px }}
b {{ display: block; font-weight: 600; margin-bottom: 3px }}
.stat {{ font-size: 30px; text-align: center; color: #fff; padding: 8px 0 }}
i {{ font-style: normal; margin-right: 10px; white-space: nowrap }}
.legend {{ font-size: 10.5px }}
td, th {{ text-align: left; padding: 1px 14px 1px 0; font-weight: normal }} th {{ color: #9fa7b3 }}
"""
VARIABLES = {"$job": ".*", "$queue": ".*", "$__rate_interval": "15s"}
Answer = list[dict[str, Any]]


@contextmanager
def scraping(folder: Path, target: str) -> Iterator[str]:
    """Run a Prometheus that scrapes an address each second; yield its own address."""
    (port,) = free_ports(1)
    config = {"scrape_configs": [{"job_name": "bank-consumer", "static_configs": [{"targets": [target]}]}]}
    (folder / "prometheus.yml").write_text(json.dumps({"global": {"scrape_interval": "1s"}} | config))
    program = shutil.which("prometheus")
    assert program, "Prometheus is not installed: apt-get install prometheus."
    words = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log:
        child = subprocess.Popen([program, *words], cwd=folder, stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()
            child.wait()


def drawn(address: str, seconds: int) -> str:
    """Return the page that shows the first rows of the dashboard over the last seconds."""
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    end = next(at for at, one in enumerate(panels) if one["title"] == LAST_ROW)
    height = panels[end]["gridPos"]["y"] * LINE
    parts = "".join(_panel(one, address, seconds) for one in panels[:end])
    return f'<!doctype html><style>{STYLE}</style><div id="all" style="height:{height}px">{parts}</div>'


def _panel(panel: dict[str, Any], address: str, seconds: int) -> str:
    at = panel["gridPos"]
    width, height = at["w"] * COLUMN - GAP, at["h"] * LINE - GAP
    place = f"left:{at['x'] * COLUMN}px;top:{at['y'] * LINE}px;width:{width}px;height:{height}px"
    title = escape(panel["title"])
    if panel["type"] == "row":
        return f'<div class="row" style="{place}">⌄ {title}</div>'
    answers = [_asked(address, one, seconds) for one in panel["targets"]]
    if panel["type"] == "stat":
        value = float(answers[0][0]["value"][1])
        inside = f'<div class="stat">{_text(value, panel)}</div>'
        place += f";background:{_colour(value, panel)}"
    elif panel["type"] == "table":
        inside = _table(panel, answers)
    else:
        inside = _lines(panel, answers, width - 60, height - 74, seconds)
    return f'<div class="panel" style="{place}"><b>{title}</b>{inside}</div>'


def _asked(address: str, target: dict[str, Any], seconds: int) -> Answer:
    query, now = target["expr"], time.time()
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    over = {"query": query, "start": now - seconds, "end": now, "step": 1}
    path, asked = ("query", {"query": query}) if target.get("instant") else ("query_range", over)
    with urlopen(f"{address}/api/v1/{path}?{urlencode(asked)}") as answer:  # noqa: S310 - our own Prometheus
        found: Answer = json.load(answer)["data"]["result"]
    return found


def _lines(panel: dict[str, Any], answers: list[Answer], width: int, height: int, seconds: int) -> str:
    """Draw a chart: each series as a line, with the highest value at the side."""
    named = [
        (_legend(target["legendFormat"], one["metric"]), [(at, float(value)) for at, value in one["values"]])
        for target, found in zip(panel["targets"], answers, strict=True)
        for one in found
    ]
    values = [value for _name, points in named for _at, value in points if value == value]  # noqa: PLR0124 - not NaN
    top, now = max(values, default=0) or 1, time.time()
    paths, legend = [], []
    for number, (name, points) in enumerate(named):
        colour = COLOURS[number % len(COLOURS)]
        shown = [(at, value) for at, value in points if value == value]  # noqa: PLR0124 - not NaN
        line = " ".join(
            f"{(at - now + seconds) / seconds * width:.1f},{height - value / top * height:.1f}" for at, value in shown
        )
        paths.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        last = _text(shown[-1][1], panel) if shown else "-"
        legend.append(f'<i style="color:{colour}">{escape(name)} {last}</i>')
    frame = f'<path d="M0 0H{width}M0 {height / 2}H{width}M0 {height}H{width}" stroke="#2c3036"/>'
    side = f'<text x="{width + 4}" y="9" fill="#9fa7b3" font-size="10">{_text(top, panel)}</text>'
    chart = f'<svg width="{width + 44}" height="{height + 4}">{frame}{side}{"".join(paths)}</svg>'
    return f'{chart}<div class="legend">{" ".join(legend)}</div>'


def _table(panel: dict[str, Any], answers: list[Answer]) -> str:
    names = panel["transformations"][1]["options"]["renameByName"]
    rows: dict[str, list[str]] = {}
    for number, found in enumerate(answers):
        unit = {"unit": "s"} if names[f"Value #{'ABCDE'[number]}"] == "Oldest" else {"unit": "short"}
        for one in found:
            cells = rows.setdefault(one["metric"]["queue"], [])
            cells.append(_text(float(one["value"][1]), {"fieldConfig": {"defaults": unit}}))
    head = "".join(f"<th>{escape(name)}</th>" for name in names.values())
    body = "".join(
        f"<tr><td>{escape(queue)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        for queue, cells in sorted(rows.items())
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _legend(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], "").rpartition("handlers.")[2], text) or "-"


def _text(value: float, panel: dict[str, Any]) -> str:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "s":
        if value < 1:
            return f"{value * 1000:.3g} ms"
        return f"{value:.3g} s" if value < 100 else f"{value / 60:.3g} min"
    return f"{value:.3g}" + (" /s" if unit == "ops" else "")


def _colour(value: float, panel: dict[str, Any]) -> str:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    return STEPS[[one["color"] for one in steps if one["value"] is None or value >= one["value"]][-1]]
