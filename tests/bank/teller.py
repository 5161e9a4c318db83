"""The teller: a process of the bank that plays one scene for each input line."""

import json
import sys
import traceback
from importlib import import_module

import django


def main() -> None:
    django.setup()
    scenes = import_module("tests.bank.scenes")
    for line in sys.stdin:
        scene, parts = json.loads(line)
        try:
            told = {"answer": getattr(scenes, scene)(**parts)}
        except Exception:  # noqa: BLE001 - the error is printed for the test
            told = {"failed": traceback.format_exc()}
        print(json.dumps(told, default=str), flush=True)  # noqa: T201 - this is how it answers


if __name__ == "__main__":
    main()
