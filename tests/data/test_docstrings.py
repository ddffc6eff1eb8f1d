import collections

import pytest

from rt_keras.data import docstrings

MODULE = '''"""A module about trees."""
import sys

def grow(tree: str, *, fast=True) -> int:
    """Makes a tree taller, e.g. an
    oak. It never fails.

    More.
    """

class Tree(list, metaclass=type):
    """A plant with a trunk and leaves"""

    def __init__(self):
        """Makes a tree from nothing at all."""

    async def fall(self):
        """fall() -> None

        Falls to the ground at once!
        """

    def again(self):
        """A plant with a trunk and leaves"""

    def brief(self):
        """Too short."""

    def none(self):
        pass

if sys.platform:
    def branch():
        """Grows from a trunk to a side."""
else:
    def branch():
        """Grows from a trunk to another side."""
'''


@pytest.fixture
def library(tmp_path):
    files = {
        "tree.py": MODULE,
        "wood/__init__.py": 'def cut():\n    """Cuts wood into small parts."""\n',
        "wood/broken.py": "def (",
        "wood/test/test_wood.py": 'def cut():\n    """Tests that wood is cut."""\n',
    }
    for name, text in files.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "lib"


def test_docstrings_become_questions(library):
    left_out = collections.Counter()
    questions = {x["id"]: x for x in docstrings.find(library, left_out)}
    assert {key: (x["question"], x["answer"]) for key, x in questions.items()} == {
        "tree.grow": ("What does grow do, in tree?", "Makes a tree taller, e.g. an oak."),
        "tree.Tree": ("What is the class Tree, in tree?", "A plant with a trunk and leaves"),
        "tree.Tree.fall": ("What does Tree.fall do, in tree?", "Falls to the ground at once!"),
        "tree.branch": ("What does branch do, in tree?", "Grows from a trunk to a side."),
        "wood.cut": ("What does cut do, in wood?", "Cuts wood into small parts."),
    }
    assert all(x["title"] == key for key, x in questions.items())
    assert left_out == {
        "modules that cannot be read": 1,
        "with the docstring of another": 1,
        "with the name of another": 1,
        "without a sentence": 1,
    }


def test_the_document_has_the_signature(library):
    texts = {x["id"]: x["text"] for x in docstrings.find(library, collections.Counter())}
    signature = "def grow(tree: str, *, fast=True) -> int"
    assert texts["tree.grow"] == (
        f"{signature}\n\nMakes a tree taller, e.g. an\noak. It never fails.\n\nMore."
    )
    assert texts["tree.Tree"].startswith("class Tree(list, metaclass=type)\n\nA plant")
    assert texts["tree.Tree.fall"].startswith("async def fall(self)\n\nfall() -> None\n\nFalls")


def test_the_library_of_the_running_python():
    questions = {x["id"]: x for x in docstrings.find(None, collections.Counter())}
    wrap = questions["textwrap.wrap"]
    assert wrap["text"].startswith("def wrap(text, width=70, **kwargs)\n\nWrap a single paragraph")
    assert wrap["answer"] == "Wrap a single paragraph of text, returning a list of wrapped lines."


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", None),
        ("Two words.", None),
        ("Works as i.e. this does. And that.", "Works as i.e. this does."),
        ("S.find(sub) -> int\n\nFinds a part of it.", "Finds a part of it."),
        (">>> 1 + 1\n2", None),
        ("It has no end\nand more lines", None),
        ("It has no end", "It has no end"),
        ("It is version 3.11 of it.", "It is version 3.11 of it."),
        ('group = mailbox ";" [CFWS]', None),
        ("It goes on " * 40 + ".", None),
    ],
)
def test_first_sentence(text, expected):
    assert docstrings.first_sentence(text) == expected
