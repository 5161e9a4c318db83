"""The product's shape: few modules, short chains of imports, names that stand once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tooling.house import PACKAGE, Figure, House

HOUSE = House(PACKAGE)
LIMITS = {
    HOUSE.modules: 212,
    HOUSE.chain: 16,
    HOUSE.import_share: 6.5,
    HOUSE.shared_names: 0,
    HOUSE.gerunds: 0,
    HOUSE.slips: 0,
}
"""What each figure may be at most. Lower a limit with each change that allows it."""


@pytest.mark.parametrize(("measure", "limit"), LIMITS.items(), ids=[measure.__name__ for measure in LIMITS])
def test_the_package_stays_within_its_size_limits(measure: Callable[[], Figure], limit: float) -> None:
    assert measure().value <= limit, str(measure())


def made(folder: Path, **files: str) -> House:
    for name, text in files.items():
        path = folder / "shop" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(folder / "shop")


def test_the_longest_import_chain_is_found_in_order(tmp_path: Path) -> None:
    house = made(tmp_path, top="from shop import middle, low\n", middle="from shop.low import x\n", low="x = 1\n")

    assert house.chain().details == ("top", "middle", "low")


def test_imports_are_counted_with_all_their_lines(tmp_path: Path) -> None:
    house = made(tmp_path, one="from os import (\n    path,\n)\n\nx = path\n")

    assert house.import_share().value == 60


def test_names_in_three_packages_and_gerunds_are_found(tmp_path: Path) -> None:
    house = made(tmp_path, a__row="", b__row="", c__row="", a__testing="", b__parking="")

    assert (house.shared_names().details, house.gerunds().details) == (("row",), ("b.parking",))


def test_a_small_module_with_one_importer_is_found_unless_it_is_a_command(tmp_path: Path) -> None:
    house = made(
        tmp_path,
        one="from shop import small, shared, errors\nfrom shop.management.commands import run\n",
        two="from shop import shared\n",
        small="x = 1\n",
        shared="x = 1\n",
        errors="x = 1\n",
        management__commands__run="x = 1\n",
    )

    assert house.slips().details == ("small",)
