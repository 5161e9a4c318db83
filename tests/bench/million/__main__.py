"""`python -m tests.bench.million MESSAGES FILE`: fill the database of the environment variables, and measure."""

import sys
from importlib import import_module
from pathlib import Path

import django

if __name__ == "__main__":
    django.setup()
    # Models can be imported only after setup().
    import_module("tests.bench.million.measuring").measure(int(sys.argv[1]), Path(sys.argv[2]))
