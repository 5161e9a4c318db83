"""The tutorial does what it says: its files, commands, outputs and steps, followed from start to end."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tooling.pages import page
from tests.tooling.tutorial import Departure, Looked, Visitor, compare, walk

TEXT = page("tutorial.md").read_text()
SHORT = """
# A page

```console
$ mkdir bank
$ cd bank
$ echo 'paid at 10:00:00'
paid at 11:11:11
```

```python
# paid.py
print("paid")
```

```console
$ cat paid.py
…
print("paid")
```
"""
FORM = '<form method="post"><input name="rate" value="20"><button name="start" value="now">Requeue 1</button></form>'


@pytest.mark.slow
@pytest.mark.nightly
def test_the_tutorial_works_from_start_to_end(tmp_path: Path) -> None:
    with walk(tmp_path) as walker:
        walker.follow(TEXT)

    assert walker.done.count("item") == 5
    assert walker.done.count("console") > 12


def test_a_correct_page_is_followed(tmp_path: Path) -> None:
    with walk(tmp_path) as walker:
        walker.follow(SHORT)

    assert (tmp_path / "bank" / "paid.py").read_text() == '# paid.py\nprint("paid")\n'


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("$ echo", "$ ehco", "exit code 127"),
        ("paid at 11", "parked at 11", "the page shows"),
        ("paid at 11:11:11\n", "", "does not show"),
        ("# paid.py", "print()", "is its path"),
        ('$ cat paid.py\n…\nprint("paid")', '$ cat paid.py\n…\nprint("parked")', "is not in"),
    ],
)
def test_an_incorrect_page_is_refused(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    assert SHORT.count(right) == 1

    with walk(tmp_path) as walker, pytest.raises(Departure, match=said):
        walker.follow(SHORT.replace(right, wrong))


def test_a_button_missing_from_the_page_is_refused() -> None:
    visitor = Visitor()
    visitor.page = Looked(SimpleNamespace(content=FORM.encode()))

    with pytest.raises(Departure, match="Requeue 2"):
        visitor.press("Requeue 2")


@pytest.mark.parametrize("rows", [["a", "b"], ["b", "a", "c"], ["a", "c"]])
def test_missing_and_reordered_rows_are_refused(rows: list[str]) -> None:
    with pytest.raises(Departure):
        compare(["a", "b", "c"], iter(rows), "here")
