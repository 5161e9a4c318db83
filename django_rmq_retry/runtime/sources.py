"""Which source files are the project's: neither the standard library's, nor an installed package's, nor ours."""

import functools
import os
import sysconfig
from pathlib import Path

INSTALLED = frozenset({"site-packages", "dist-packages"})
_paths = sysconfig.get_paths()
_found = (_paths["stdlib"], _paths["platstdlib"], str(Path(os.__file__).parent), str(Path(__file__).parents[1]))
_ELSEWHERE = tuple({f"{folder}{os.sep}" for path in _found for folder in (path, os.path.realpath(path))})


@functools.lru_cache(maxsize=4096)
def projects_own(file: str) -> bool:
    """Whether a file, as a traceback names it, is the project's; code that came from no file is nobody's."""
    if not file or file.startswith("<"):
        return False
    return not file.startswith(_ELSEWHERE) and INSTALLED.isdisjoint(Path(file).parts)
