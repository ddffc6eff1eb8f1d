"""The docstrings of Python's standard library, as questions with answers."""

import ast
import re
import sysconfig
import warnings
from pathlib import Path

from rt_keras.data.folder_files import list_files
from rt_keras.data.python_source import LEFT_OUT

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.Try, ast.ExceptHandler, ast.With)
# A paragraph that is no prose: a call such as "S.find(sub) -> int", an example, a list.
NO_PROSE = re.compile(r"[\w.]+\([^)]*\)( *-[->]|:?$| *=)|>>>|[-*+:@.] ?\w|[\w.]+ *->|[=-]{3}")
SENTENCE = re.compile(r"(.+?(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)(?<!\bcf)[.!?])(?=\s|$)")
# A rule of a grammar.
RULE = re.compile(r""" = |" "|"[])]|\["|\*\(""")
LEAST_WORDS, MOST = 4, 300


def find(library, left_out):
    """Yields a question for each class and function with a docstring.

    The document is the signature with the docstring, whose first sentence is the answer. Nothing is
    imported.

    Args:
        library: path of a folder of .py files; None for the standard library of the running Python.
        left_out: `collections.Counter`, in which reasons to leave out a question are counted.

    Raises:
        FileNotFoundError: if the folder has no .py files.
    """
    library = Path(library or sysconfig.get_path("stdlib"))
    ids, texts = set(), set()
    for file in list_files(library, ".py", LEFT_OUT):
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        tree = _parse(library / file)
        if tree is None:
            left_out["modules that cannot be read"] += 1
            continue
        for name, node in _named(tree):
            text = (ast.get_docstring(node) or "").strip()
            if not text or node.name.startswith("__"):
                continue
            answer = first_sentence(text)
            if answer is None:
                left_out["without a sentence"] += 1
            elif text in texts:
                left_out["with the docstring of another"] += 1
            elif f"{module}.{name}" in ids:
                left_out["with the name of another"] += 1
            else:
                texts.add(text)
                ids.add(f"{module}.{name}")
                is_class = isinstance(node, ast.ClassDef)
                what = f"What is the class {name}" if is_class else f"What does {name} do"
                yield {
                    "id": f"{module}.{name}",
                    "title": f"{module}.{name}",
                    "text": f"{_signature(node)}\n\n{text}",
                    "question": f"{what}, in {module}?",
                    "answer": answer,
                }


def _parse(path):
    """Returns the syntax tree of a file; None if it has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return None


def _named(node, prefix=""):
    """Yields the names and the nodes of classes, functions and methods."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, BRANCHES):
            yield from _named(child, prefix)
        elif isinstance(child, FUNCTIONS):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield prefix + child.name, child
            yield from _named(child, f"{prefix}{child.name}.")


def _signature(node):
    """Returns the first line of a definition, without decorators."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(x) for x in (*node.bases, *node.keywords))
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{start} {node.name}({ast.unparse(node.args)}){returns}"


def first_sentence(text):
    """Returns the first sentence of a docstring; None if it has none, or a short or long one.

    >>> first_sentence("join(words) -> text\\n\\nJoins words, e.g. all\\nof a line. Never fails.")
    'Joins words, e.g. all of a line.'
    """
    for paragraph in re.split(r"\n\s*\n", text):
        line = " ".join(paragraph.split())
        if NO_PROSE.match(line):
            continue
        match = SENTENCE.match(line)
        sentence = match[1] if match else line
        fits = len(sentence.split()) >= LEAST_WORDS and len(sentence) <= MOST
        whole = match or "\n" not in paragraph.strip()
        return sentence if fits and whole and not RULE.search(sentence) else None
    return None
