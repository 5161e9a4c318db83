"""The package as it is published: its archives, their files and their metadata."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tooling import package
from tests.tooling.lanes import LANES
from tests.tooling.package import Built
from tests.tooling.services import Unavailable, go_without

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow  # they build both archives once per worker


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The two archives, built from this tree."""
    lack = package.lack()
    if lack:
        go_without(Unavailable(None, lack))
    return package.build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def unpacked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unpacked sdist."""
    return package.unpack(built.sdist, tmp_path_factory.mktemp("unpacked"))


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    assert package.wrong_in_wheel(built.in_wheel, ROOT) == []


@pytest.mark.parametrize(
    "name",
    [
        "py.typed",
        "locale/de/LC_MESSAGES/django.mo",
        "migrations/0001_initial.py",
        "static/django_rmq_retry/rmq.css",
        "templates/admin/rmq_retry/page.html",
        "management/commands/rmq_consume.py",
    ],
)
def test_the_wheel_holds_each_kind_of_file(built: Built, name: str) -> None:
    assert f"django_rmq_retry/{name}" in built.in_wheel


def test_the_sdist_holds_each_file_of_the_repository(built: Built) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this tree is itself an unpacked sdist")

    assert package.wrong_in_sdist(built.in_sdist, ROOT) == []


def test_missing_and_unexpected_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "django_rmq_retry").mkdir()
    (tmp_path / "django_rmq_retry/py.typed").touch()
    files = {"django_rmq_retry-1.dist-info/WHEEL", "tests/conftest.py"}

    assert package.wrong_in_wheel(files, tmp_path) == [
        "The wheel lacks django_rmq_retry/py.typed.",
        "The wheel holds tests/conftest.py, which is no file of the package.",
    ]


def test_the_metadata_is_rendered_by_the_package_index(built: Built) -> None:
    assert package.rendered(built) == ""


def test_each_supported_version_has_a_classifier_and_a_test_lane(built: Built) -> None:
    classifiers = built.metadata.get_all("Classifier", [])

    djangos = {name.rpartition(" ")[2] for name in classifiers if name.startswith("Framework :: Django ::")}
    pythons = {
        name.rpartition(" ")[2] for name in classifiers if name.startswith("Programming Language :: Python :: 3.")
    }
    assert djangos == set(LANES)
    assert pythons == {python for lane in LANES.values() for python in lane}


def test_the_metadata_names_the_projects_pages(built: Built) -> None:
    urls = built.metadata.get_all("Project-URL", [])

    assert [url.partition(",")[0] for url in urls] == ["Documentation", "Source", "Changelog", "Issues", "Security"]


@pytest.mark.nightly
def test_the_tests_of_an_unpacked_sdist_pass(unpacked: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"}
    chosen = ("tests/test_architecture.py", "tests/test_drawings.py", "tests/test_env.py")

    done = subprocess.run(
        [*command, *chosen], cwd=unpacked, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def test_a_release_with_a_mismatched_tag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert package.main(["--tag", "v99"]) == 1
    assert "The tag is v99, and the package's version is" in capsys.readouterr().out
