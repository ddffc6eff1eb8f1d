"""Tests of the distributions: built, checked, installed and used outside the tree."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import rt_keras

ROOT = Path(__file__).parents[1]
# The files of the project in a clone.
PARTS = (
    *("rt_keras", "configs", "tests", "docs", "notebooks", "export", ".ci"),
    *("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md", "CHANGELOG.md"),
    *("CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"),
)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "_build", "generated", ".*cache")


def run(*command, **options):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=environment, **options
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the project, because building leaves folders in it."""
    tree = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tree / part, ignore=LEFT_OUT)
        else:
            shutil.copy(ROOT / part, tree)
    # Copies, which building the site makes.
    for notebook in (tree / "docs" / "notebooks").glob("*.ipynb"):
        notebook.unlink()
    return tree


@pytest.fixture(scope="module")
def built(tree, tmp_path_factory):
    """The folder of the source distribution and of the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, tree)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder of the commands of an environment with the wheel, and this one's packages."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    (packages,) = folder.glob("lib/*/site-packages")
    # Their own .pth files, such as that of an editable installation of the tree, do not count.
    these = [path for path in sys.path if path.endswith("-packages")]
    (packages / "these.pth").write_text("\n".join(these))
    (wheel,) = built.glob("*.whl")
    run(folder / "bin/pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    return folder / "bin"


@pytest.mark.end_to_end
def test_the_source_distribution_holds_what_the_tests_need(built, tree):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = {x.relative_to(tree).as_posix() for x in tree.rglob("*") if x.is_file()}
    left_behind = {name for name in files if name.startswith(("build/", "rt_keras.egg-info/"))}
    assert files - left_behind <= names
    assert not [name for name in names if name.endswith(".pyc")]


@pytest.mark.end_to_end
def test_the_wheel_holds_the_package_and_its_configurations_alone(built):
    (path,) = built.glob("*.whl")
    names = zipfile.ZipFile(path).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rt_keras"}
    assert f"rt_keras-{rt_keras.__version__}.dist-info/licenses/LICENSE" in names
    configs = {name for name in names if name.startswith("rt_keras/configs/")}
    assert configs == {f"rt_keras/configs/{path.name}" for path in ROOT.glob("configs/*.yaml")}
    assert "rt_keras/convert/t2t_hparams.yaml" in names


@pytest.mark.end_to_end
def test_an_index_would_take_the_distributions(built):
    run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir())


@pytest.mark.end_to_end
def test_the_wheel_works_without_the_tree(installed, tmp_path):
    where = "import rt_keras; print(rt_keras.__file__)"
    assert run(installed / "python", "-c", where, cwd=tmp_path).startswith(str(installed.parent))
    version = run(installed / "rt-keras", "--version", cwd=tmp_path)
    assert version == f"rt_keras {rt_keras.__version__}\n"
    (tmp_path / "text.txt").write_text("The café opens at nine.\n" * 200)
    few = ["trainer.steps=2", "trainer.validation_every=2", "trainer.validation_batches=1"]
    few += ["schedule.warmup_steps=0", "data.batch_size=1", f"data.data_dir={tmp_path}/prepared"]
    settings = [part for setting in few for part in ("--set", setting)]
    train = ["train", "--config", "quickstart", "--data", "text.txt", *settings]
    run(installed / "rt-keras", *train, "--output", "run", cwd=tmp_path)
    generate = ["generate", "--model", "run", "--prompt", "The ", "--max-length", "8"]
    assert run(installed / "rt-keras", *generate, cwd=tmp_path).startswith("The ")


def test_supported_pythons_are_said_once(monkeypatch):
    """`python_requires`, the markers, the classifiers and ruff's target agree."""
    found = {}
    monkeypatch.setattr("setuptools.setup", found.update)
    monkeypatch.chdir(ROOT)
    exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), {"__file__": "setup.py"})
    pythons = [x.split()[-1] for x in found["classifiers"] if "Python :: 3." in x]
    oldest, newest = pythons[0], pythons[-1]
    assert found["python_requires"] == f">={oldest},<3.{int(newest.split('.')[1]) + 1}"
    for needed in (found["install_requires"], *found["extras_require"].values()):
        ends = f'; python_version >= "{oldest}" and python_version <= "{newest}"'
        assert all(requirement.endswith(ends) for requirement in needed)
    target = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["target-version"]
    assert target == f"py{oldest.replace('.', '')}"


def test_links_of_the_description_are_absolute_where_the_address_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("PROJECT_URL", "https://code.example/rt_keras")
    shown = run(sys.executable, ROOT / "setup.py", "--quiet", "--long-description", cwd=tmp_path)
    assert "](https://code.example/rt_keras/blob/main/docs/start.md)" in shown
    assert "](https://code.example/rt_keras/raw/main/rt_keras/analysis/" in shown
    assert not re.search(r"\]\((?!https:)", shown)
