"""`python -m tests.bench.million SHAPE FILE`: fill the database of the environment variables, and measure."""

import json
import sys
from importlib import import_module
from pathlib import Path

import django

from tests.bench.million.shapes import Shape

if __name__ == "__main__":
    django.setup()
    # Models can be imported only after setup().
    shape = Shape(**json.loads(sys.argv[1]))
    import_module("tests.bench.million.measuring").measure(shape, Path(sys.argv[2]))
