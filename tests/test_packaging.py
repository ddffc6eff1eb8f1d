"""Tests of the distributions: built, checked, installed and used outside the tree."""

import importlib
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
from rt_keras.analysis import attention_map

ROOT = Path(__file__).parents[1]
# The files of the project in a clone.
PARTS = (
    *("rt_keras", "configs", "tests", "docs", "notebooks", "export", ".ci"),
    *("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md", "CHANGELOG.md"),
    *("CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"),
)
OF_EXTRAS = (
    *("official", "tensorflow_datasets", "array_record"),
    *("tensorflow_serving", "matplotlib", "tf_keras"),
)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "_build", "generated", ".*cache")
# Runs outside the tree, in a process in which no package of an extra can be imported.
WITHOUT_EXTRAS = f"""
import sys
sys.modules.update(dict.fromkeys({OF_EXTRAS}))
sys.stderr = sys.stdout
import rt_keras
from rt_keras import cli, data, layers, models
print(rt_keras.__file__)

backbone = models.RoutingTransformerBackbone(258, 1, 8, 8, [layers.RoutingHeads(1, 2, 4)])
preprocessor = models.RoutingTransformerCausalLMPreprocessor(data.ByteTokenizer())
model = models.RoutingTransformerCausalLM(backbone, preprocessor)
model.save_to_preset("preset")

for command in (
    "configs",
    "generate --model preset --prompt a --max-length 4",
    "train --config quickstart --output run",
    "evaluate --model preset --data python_source",
    "export --model preset --output exported",
    "quickstart --output quickstart",
):
    print(command.split()[0], cli.main(command.split()))
"""


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


@pytest.mark.slow
def test_the_source_distribution_holds_what_the_tests_need(built, tree):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = {x.relative_to(tree).as_posix() for x in tree.rglob("*") if x.is_file()}
    left_behind = {name for name in files if name.startswith(("build/", "rt_keras.egg-info/"))}
    assert files - left_behind <= names
    assert not [name for name in names if name.endswith(".pyc")]


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_configurations_alone(built):
    (path,) = built.glob("*.whl")
    names = zipfile.ZipFile(path).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rt_keras"}
    assert f"rt_keras-{rt_keras.__version__}.dist-info/licenses/LICENSE" in names
    modules = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("rt_keras/**/*.py")}
    configs = {f"rt_keras/configs/{path.name}" for path in ROOT.glob("configs/*.yaml")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert {name for name in names if name.startswith("rt_keras/configs/")} == configs
    assert "rt_keras/convert/t2t/hparams.yaml" in names


@pytest.mark.slow
def test_an_index_would_take_the_distributions(built):
    run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir())


@pytest.mark.slow
def test_the_wheel_works_without_the_tree_and_without_extras(built, tmp_path):
    venv.create(tmp_path / "environment")
    commands = tmp_path / "environment" / "bin"
    (packages,) = commands.parent.glob("lib/*/site-packages")
    # Their own .pth files, such as that of an editable installation of the tree, do not count.
    these = [path for path in sys.path if path.endswith("-packages")]
    (packages / "these.pth").write_text("\n".join(these))
    pip = [sys.executable, "-m", "pip", "--python", commands / "python", "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", *built.glob("*.whl"))
    version = run(commands / "rt-keras", "--version", cwd=tmp_path)
    assert version == f"rt_keras {rt_keras.__version__}\n"
    shown = run(commands / "python", "-c", WITHOUT_EXTRAS, cwd=tmp_path)
    assert shown.startswith(str(packages))
    assert "\nconfigs 0\n" in shown and "\ngenerate 0\n" in shown
    of_commands = {"train": "train", "evaluate": "train", "export": "serving"}
    for command, extra in (of_commands | {"quickstart": "serving"}).items():
        line = re.search(rf"(.*)\n{command} 1\n", shown)[1]
        assert line.startswith("rt-keras: error: ")
        assert f"needs the extra `{extra}`: pip install 'rt_keras[{extra}]' (" in line


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
    assert "](https://code.example/rt_keras/raw/main/docs/pictures/" in shown
    assert not re.search(r"\]\((?!https:)", shown)


def test_data_sets_and_drawing_name_their_extras(monkeypatch, tmp_path):
    loaded = [name for name in sys.modules if name.partition(".")[0] in OF_EXTRAS]
    for name in (*OF_EXTRAS, *loaded):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("text_folder", "pairs_folder"):
        monkeypatch.delitem(sys.modules, f"rt_keras.data.{name}", raising=False)
        with pytest.raises(ModuleNotFoundError, match="Reading data sets needs the extra `train`"):
            importlib.import_module(f"rt_keras.data.{name}")
    with pytest.raises(ModuleNotFoundError, match="Drawing needs the extra `plot`"):
        maps = {"tokens": ["a"], "weights": [[[[1.0]]]], "heads": [["FullHeads"]]}
        attention_map.draw(maps, tmp_path / "map.png")
