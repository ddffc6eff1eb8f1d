"""Questions with long answers of two packages of Debian, which have them as web pages."""

import re
from html.parser import HTMLParser
from pathlib import Path

# The pages of each package, below the folder where packages are installed.
PAGES = {
    "anarchism": ("doc/anarchism/html", r"(?:sec[A-J]|append)\d.*\.html"),
    "debian-faq": ("doc/debian/FAQ", r".*\.en\.html"),
}
LEAST, MOST = 200, 1500
HEADINGS = {"h1", "h2", "h3", "h4"}
BLOCKS = {"p", "div", "blockquote", "ul", "ol", "li", "dl", "dt", "dd", "pre", "hr"} | HEADINGS
# Elements and classes without text of the answer.
DROPPED = {"script", "style", "table", "sup"}
DROPPED_CLASSES = {"navheader", "navfooter", "toc", "footnotes", "book-navigation", "page-links"}
# Before a heading: 10.2., A.2.11, Section A -
NUMBER = re.compile(r"(?:[A-Z]\.)?\d+(?:\.\d+)*\.?\s+|Section [A-Z] - ")


def find(share, left_out):
    """Yields a question for each section whose heading is one, with its text.

    The answer is the text's first paragraphs, of about 1,500 characters.

    Args:
        share: path of the folder where the packages are installed, such as "/usr/share".
        left_out: `collections.Counter`, in which reasons to leave out a section are counted.

    Raises:
        FileNotFoundError: if a package is not installed.
    """
    pages = {package: _pages(share, package) for package in PAGES}
    for package, paths in pages.items():
        for path in paths:
            parser = Sections()
            parser.feed(path.read_text(encoding="utf-8"))
            parser.close()
            for number, (heading, text) in enumerate(parser.sections()):
                if not heading.endswith("?"):
                    left_out["sections without a question"] += 1
                elif len(text) < LEAST:
                    left_out[f"with a text below {LEAST} characters"] += 1
                else:
                    name = path.name.removesuffix(".html").removesuffix(".en")
                    yield {
                        "id": f"{package}/{name}/{number}",
                        "title": heading,
                        "text": text,
                        "question": heading,
                        "answer": beginning(text),
                    }


def _pages(share, package):
    folder, names = PAGES[package]
    folder = Path(share, folder)
    paths = folder.glob("*.html") if folder.is_dir() else []
    paths = sorted(path for path in paths if re.fullmatch(names, path.name))
    if not paths:
        raise FileNotFoundError(f"{folder} has no pages; install {package}")
    return paths


def beginning(text):
    """Returns the first paragraphs of a text, of at most about 1,500 characters.

    >>> beginning("One.\\n\\nTwo.")
    'One.\\n\\nTwo.'
    """
    first, *others = text.split("\n\n")
    for paragraph in others:
        if len(first) + 2 + len(paragraph) > MOST:
            break
        first += f"\n\n{paragraph}"
    return first


class Sections(HTMLParser):
    """Reads the headings of a page and the plain text between them.

    The text before the first heading belongs to the title of the page.

    >>> page = Sections()
    >>> page.feed("<h2>1. Who?</h2><p>It <i>was</i> I.</p><ul><li>And</li><li>you</li></ul>")
    >>> page.sections()
    [('Who?', 'It was I.\\n\\n- And\\n\\n- you')]
    """

    def __init__(self):
        super().__init__()
        # Each section is a list of its heading and the parts of its text.
        self.found = [["", []]]
        self.place = None
        # The element that is dropped, and how many of its kind are open in it.
        self.dropped, self.depth = None, 0
        self.verbatim = False

    def handle_starttag(self, tag, attrs):
        """Begins a heading, a paragraph or a part that is dropped."""
        if self.dropped:
            self.depth += tag == self.dropped
            return
        classes = (dict(attrs).get("class") or "").split()
        if tag in DROPPED or not DROPPED_CLASSES.isdisjoint(classes):
            self.dropped, self.depth = tag, 1
        elif tag in HEADINGS:
            self.found.append(["", []])
            self.place = "heading"
        elif tag == "title":
            self.place = "heading"
        elif tag in BLOCKS:
            self._add("\n\n- " if tag == "li" else "\n\n")
            self.verbatim = self.verbatim or tag == "pre"
        elif tag == "br":
            self._add("\n")

    def handle_endtag(self, tag):
        """Ends what began."""
        if self.dropped:
            self.depth -= tag == self.dropped
            self.dropped = self.dropped if self.depth else None
        elif tag in HEADINGS or tag == "title":
            self.place = "text"
        elif tag in BLOCKS:
            self._add("\n\n")
            self.verbatim = self.verbatim and tag != "pre"

    def handle_data(self, data):
        """Adds text, in which only examples of input and output keep their lines."""
        if not self.dropped:
            self._add(data if self.verbatim else re.sub(r"\s+", " ", data))

    def _add(self, text):
        if self.place == "heading":
            self.found[-1][0] += text
        elif self.place == "text":
            self.found[-1][1].append(text)

    def sections(self):
        """Returns the headings, without their numbers, and the texts; not the empty ones."""
        pairs = [(_heading(heading), _plain("".join(pieces))) for heading, pieces in self.found]
        return [pair for pair in pairs if any(pair)]


def _heading(text):
    text = " ".join(text.split()).removesuffix(" | Anarchist Writers")
    number = NUMBER.match(text)
    return text[number.end() :] if number else text


def _plain(text):
    """Returns a text without empty paragraphs and with single spaces."""
    paragraphs, bullet = [], ""
    for part in re.split(r"\n[ \t]*\n\s*", text):
        lines = [re.sub(r"(?<=\S)[ \t]+", " ", line).rstrip() for line in part.split("\n")]
        part = "\n".join(lines).strip("\n")
        if part.strip() in ("", "-"):
            # An item may begin with a paragraph.
            bullet = "- " if part.strip() else bullet
            continue
        paragraphs.append(bullet + part.strip(" "))
        bullet = ""
    return "\n\n".join(paragraphs)
