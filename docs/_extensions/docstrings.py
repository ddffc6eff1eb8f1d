"""Reads the docstrings of rt_keras, which are written as Keras writes them, as reStructuredText.

Code is in single backquotes, formulas in fences of three, and the text under "Returns:" is prose.
Code that is a name of the reference is a link, in docstrings and on pages in Markdown.
"""

import pkgutil
import re
import textwrap

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.domains.python import PyXRefRole
from sphinx.util import inspect, logging
from sphinx.util.docutils import SphinxRole

logger = logging.getLogger(__name__)

FENCE = re.compile(r"^( *)```\w*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
RETURNS = re.compile(r"^(Returns|Yields):\n((?: +.*\n|\n)+)", re.MULTILINE)
LIST = re.compile(r"^( *)(?!- )(\S.*)\n(?=\1- )", re.MULTILINE)
CODE = re.compile(r"(`[^`]+`)(\w?)")
SOURCE = re.compile(r"^(Source:)", re.MULTILINE)


def as_rst(docstring):
    """A docstring with what reStructuredText writes otherwise in its own syntax.

    Fences become literal blocks. Returns become a field, since Napoleon would take the words before
    a colon for a type. A list may follow a line, and letters may follow code.
    """
    docstring = FENCE.sub(_literal_block, docstring)
    docstring = LIST.sub(r"\1\2\n\n", docstring)
    docstring = RETURNS.sub(_field, docstring)
    docstring = CODE.sub(_code, docstring)
    return SOURCE.sub(r"**\1**", docstring)


def _literal_block(fence):
    indent, code = fence.groups()
    code = textwrap.indent(textwrap.dedent(code), f"{indent}    ")
    return f"{indent}.. code-block:: text\n\n{code}"


def _field(section):
    name, text = section.groups()
    text = textwrap.indent(textwrap.dedent(text).strip(), "    ").strip()
    return f":{name.lower()}: {text}\n\n"


def _code(match):
    code, letter = match.groups()
    return f"{code}\\ {letter}" if letter else code


class CodeOrName(SphinxRole):
    """Text in single backquotes: code, with a link if it is a name that the reference has."""

    def run(self):
        """Returns the nodes of the text and no messages."""
        if re.fullmatch(r"[A-Za-z_][\w.]*", self.text):
            check_name(self.text, self.get_location())
            role = PyXRefRole(innernodeclass=nodes.literal)
            return role("py:obj", self.rawtext, self.text, self.lineno, self.inliner)
        return [nodes.literal(self.rawtext, self.text)], []


def check_name(name, location):
    """Warns of a name in rt_keras that does not exist. Not all that exist have a page."""
    if name.startswith("rt_keras."):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            logger.warning("no such name: %s", name, location=location)


# A class or a dotted name, by itself or called.
NAME = re.compile(r"(rt_keras\.[\w.]+|[A-Z]\w*[a-z]\w*)(\(.*\))?", re.DOTALL)


def link_names(app, doctree):
    """Makes links of the code on a page that names something with a page in the reference."""
    for code in list(doctree.findall(nodes.literal)):
        name = NAME.fullmatch(code.astext())
        if name and not isinstance(code.parent, nodes.title | nodes.reference | pending_xref):
            check_name(name[1], code)
            link = pending_xref(refdomain="py", reftype="obj", reftarget=name[1], refspecific=True)
            code.replace_self(link)
            link += code


def setup(app):
    """Registers the role, the signatures of classes, and the conversion, before Napoleon's."""

    def convert(app, what, name, obj, options, lines):
        lines[:] = as_rst("\n".join(lines) + "\n").splitlines()

    def signature(app, what, name, obj, options, signature, returns):
        # Keras's classes have a __new__ that takes anything; __init__ tells the arguments.
        if what == "class" and isinstance(obj, type):
            signature = inspect.stringify_signature(inspect.signature(obj.__init__, True))
        return signature, returns

    app.add_role("code_or_name", CodeOrName())
    app.connect("autodoc-process-docstring", convert, priority=100)
    app.connect("autodoc-process-signature", signature)
    app.connect("doctree-read", link_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
