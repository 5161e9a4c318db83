"""Sphinx configuration of the documentation: ``make docs``; warnings are errors."""

import re
from pathlib import Path

INIT = Path(__file__).parents[1] / "django_rmq_retry" / "__init__.py"

project = "django-rmq-retry"
copyright = "django-rmq-retry contributors"
release = re.findall(r'__version__ = "(.+)"', INIT.read_text())[0]
version = release

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"django-rmq-retry {release}"
html_show_sourcelink = False
