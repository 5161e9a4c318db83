"""`python -m tests.bench.million MESSAGES FILE`: fill the database that the environment names, and measure."""

import sys
from importlib import import_module
from pathlib import Path

import django

if __name__ == "__main__":
    django.setup()
    # Models can be imported from now on.
    import_module("tests.bench.million.measuring").measure(int(sys.argv[1]), Path(sys.argv[2]))
