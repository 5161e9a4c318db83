"""Updates the translation catalogues from the sources with GNU gettext, and compiles them without it.

``--compile`` only compiles.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import polib

import django_rmq_retry
from tests.tooling import apt
from tests.tooling.catalogues import read, said

PACKAGE = Path(django_rmq_retry.__file__).parent
LANGUAGES = ("de", "fr", "ru", "uk", "zh_Hans")
STAMP = re.compile(
    r'^"(POT-Creation-Date|PO-Revision-Date|Last-Translator|Language-Team|Report-Msgid-Bugs-To):.*\n', re.MULTILINE
)
"""Header lines that would change at every run."""


def main(arguments: list[str]) -> int:
    """Report the texts left to translate; return 1 if there are any."""
    if "--compile" not in arguments and not collected():
        return 1
    return 1 if sum(finish(language) for language in LANGUAGES) else 0


def collected() -> bool:
    """Add new texts to the catalogues and remove unused ones."""
    if shutil.which("msgmerge") is None and apt.may_install():
        print("gettext: installing it by apt-get", flush=True)
        apt.install("gettext")
    if shutil.which("msgmerge") is None:
        print("GNU gettext is missing (Debian: apt-get install gettext). --compile works without it.")
        return False
    words = ["makemessages", "--no-wrap", "--no-obsolete", "--add-location=file"]
    named = [word for language in LANGUAGES for word in ("-l", language)]
    (PACKAGE / "locale").mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "django", *words, *named], cwd=PACKAGE, check=True, capture_output=True)
    return True


def finish(language: str) -> int:
    """Compile one language; return the number of untranslated texts."""
    path = PACKAGE / "locale" / language / "LC_MESSAGES" / "django.po"
    path.write_text(STAMP.sub("", path.read_text(encoding="utf-8")), encoding="utf-8")
    polib.pofile(str(path)).save_as_mofile(str(path.with_suffix(".mo")))
    entries = read(path)
    missing = [entry for entry in entries if entry.fuzzy or not all(said(entry))]
    print(f"{language}: {len(entries)} texts, {len(missing)} to translate")
    for entry in missing:
        print(f"  {entry.msgid}")
    return len(missing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
