"""Every public name has its page in the reference, and a docstring that says all of it."""

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path

import pytest

import rt_keras
from rt_keras import layers

REFERENCE = Path(rt_keras.__file__).parents[1] / "docs" / "reference"
PACKAGE = Path(rt_keras.__file__).parent
# A summary begins with a noun or a verb.
NOT_FIRST = {"What", "How", "Whether", "Which", "Where"}


def listed():
    """The names that the pages of the reference list, each of which gets a page of its own."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(REFERENCE.glob("*.rst")))
    return re.findall(r"^   ~(rt_keras\S+)$", text, re.MULTILINE)


def exported():
    """The objects that packages export, and their names."""
    packages = [m.name for m in pkgutil.walk_packages(rt_keras.__path__, "rt_keras.") if m.ispkg]
    for package in [importlib.import_module(name) for name in ["rt_keras", *packages]]:
        for name in getattr(package, "__all__", ()):
            yield getattr(package, name), f"{package.__name__}.{name}"


def test_every_exported_name_has_one_page():
    pages = [pkgutil.resolve_name(name) for name in listed()]
    counts = {name: pages.count(thing) for thing, name in exported()}
    assert len(counts) > 120
    assert not [name for name, count in counts.items() if count != 1]


def lacks(thing):
    """The parts that the docstring of a class or function lacks, as a sorted list of words."""
    text = inspect.getdoc(thing) or ""
    is_class = inspect.isclass(thing)
    computes = thing.__module__.split(".")[1] in ("ops", "layers")
    # The page of the base class has the call arguments of heads.
    is_kind = is_class and issubclass(thing, layers.HeadGroup) and thing is not layers.HeadGroup
    is_kind |= is_class and issubclass(thing, layers.key_sets.KeySet)
    is_kind |= thing.__module__ == "rt_keras.layers.kinds"
    # Weights alone, without a call.
    is_kind |= thing in (layers.centroids.Centroids, layers.relative_positions.RelativePositions)
    call = thing.__init__ if is_class else thing
    try:
        source = inspect.getsource(call)
    except (OSError, TypeError):
        # Python made the constructor of a dataclass, and of a named tuple.
        source = inspect.getsource(thing)
    body = list(ast.walk(ast.parse(textwrap.dedent(source))))
    gives = any(isinstance(x, ast.Return | ast.Yield) and x.value for x in body)
    parts = {
        "args": set(arguments(call)) <= described(text),
        "shapes": not computes or is_kind or "`[" in text,
        "returns": "Returns:" in text or "Yields:" in text or is_kind or not (computes or gives),
        "raises": "Raises:" in text or not any(isinstance(x, ast.Raise) for x in body),
        "source": not computes or "Source:" in text,
        "example": ">>> " in text,
    }
    return sorted(part for part, said in parts.items() if not said)


def arguments(call):
    """The names of the arguments of a function, with their stars."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = inspect.signature(call).parameters.values()
    return [stars.get(x.kind, "") + x.name for x in parameters if x.name != "self"]


def described(text):
    """The names that a docstring's "Args:" describes."""
    section = re.search(r"^Args:\n((?: +.*\n?|\n)*)", text, re.MULTILINE)
    heads = re.findall(r"^    (\S[^:]*):", section[1] if section else "", re.MULTILINE)
    return {name.strip() for head in heads for name in head.split(",")}


@pytest.mark.parametrize("name", listed())
def test_a_docstring_lacks_nothing(name):
    thing = pkgutil.resolve_name(name)
    if inspect.ismodule(thing):
        assert thing.__doc__
    else:
        assert lacks(thing) == []


def summaries(path):
    """The first words of the docstrings in a file, by the names of their modules, classes, etc."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield getattr(node, "name", path.name), (ast.get_docstring(node) or "-").split()[0]


def test_no_summary_begins_with_a_question_word():
    found = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, word in summaries(path)
        if word in NOT_FIRST
    ]
    assert not found
