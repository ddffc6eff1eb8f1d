"""Writes questions with their answers and documents to a folder.

python docs/benchmarks/recipes/questions.py NAME FOLDER [--source SOURCE] [--limit N]

- `docstrings`: the classes and functions of Python's standard library, described in one sentence.
- `packages`: the short descriptions of Debian's packages, answered by the long ones. Before, run
  `apt-get update -o Acquire::Languages=en`.
- `glosses`: the meanings of words in WordNet (package `wordnet-base`). Invented words replace them,
  so that the answer is in the document alone.
- `faq`: the questions with long answers of the packages `anarchism` and `debian-faq`.

The hash of a question's document assigns its split.
"""

import argparse
import ast
import hashlib
import json
import re
import subprocess
import sysconfig
import warnings
from html.parser import HTMLParser
from pathlib import Path

from rt_keras.data.document_source import text_of
from rt_keras.data.file_reading import list_files
from rt_keras.data.text_folder import LEFT_OUT, SPLITS, split_of


def question(name, title, text, asked, answer):
    return {"id": name, "title": title, "text": text, "question": asked, "answer": answer}


# Docstrings.

# A paragraph that is no prose: a call such as "S.find(sub) -> int", an example, a list.
NO_PROSE = re.compile(r"[\w.]+\([^)]*\)( *-[->]|:?$| *=)|>>>|[-*+:@.] ?\w|[\w.]+ *->|[=-]{3}")
SENTENCE = re.compile(r"(.+?(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)(?<!\bcf)[.!?])(?=\s|$)")
GRAMMAR = re.compile(r""" = |" "|"[])]|\["|\*\(""")


def docstrings(library):
    texts, ids = set(), set()
    for file in list_files(library, ".py", LEFT_OUT):
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(Path(library, file).read_bytes())
        except (SyntaxError, ValueError):
            continue
        for name, node in named(tree):
            text, key = (ast.get_docstring(node) or "").strip(), f"{module}.{name}"
            answer = None if node.name.startswith("__") else first_sentence(text)
            if answer is None or text in texts or key in ids:
                continue
            texts.add(text)
            ids.add(key)
            is_class = isinstance(node, ast.ClassDef)
            what = f"What is the class {name}" if is_class else f"What does {name} do"
            text = f"{signature(node)}\n\n{text}"
            yield question(key, key, text, f"{what}, in {module}?", answer)


def named(node, prefix=""):
    """The names and the nodes of classes, functions and methods."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.If, ast.Try, ast.ExceptHandler, ast.With)):
            yield from named(child, prefix)
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield prefix + child.name, child
            yield from named(child, f"{prefix}{child.name}.")


def signature(node):
    """The first line of a definition, without decorators."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(x) for x in (*node.bases, *node.keywords))
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{start} {node.name}({ast.unparse(node.args)}){returns}"


def first_sentence(text):
    """The first sentence of a docstring; None if it has none, or a short or long one."""
    for paragraph in re.split(r"\n\s*\n", text):
        line = " ".join(paragraph.split())
        if NO_PROSE.match(line):
            continue
        match = SENTENCE.match(line)
        sentence = match[1] if match else line
        fits = len(sentence.split()) >= 4 and len(sentence) <= 300
        whole = match or "\n" not in paragraph.strip()
        return sentence if fits and whole and not GRAMMAR.search(sentence) else None
    return None


# Packages.

NAME = re.compile(r"^Package: (\S+)$", re.MULTILINE)
DESCRIPTION = re.compile(r"^Description(?:-en)?: (.*)((?:\n .*)*)", re.MULTILINE)
# A line that starts an item of a list.
ITEM = re.compile(r"([-*+•o]|\d+[.)]) ")


def packages(lists):
    seen, found = set(), {}
    for path in sorted(Path(lists).glob("*_Translation-en*")):
        if path.suffix:  # Compressed, as apt stores it.
            command = ["/usr/lib/apt/apt-helper", "cat-file", path]
            text = subprocess.run(command, capture_output=True, check=True).stdout.decode()
        else:
            text = path.read_text(encoding="utf-8")
        for paragraph in text.split("\n\n"):
            name, description = NAME.search(paragraph), DESCRIPTION.search(paragraph)
            if name and description:
                found.setdefault(name[1], (description[1].strip(), one_line(description[2])))
    for name, (short, long) in sorted(found.items()):
        # A library and its documentation have the same words, except for their names.
        words = tuple(re.findall(r"\w+", long.partition("\n\n")[0].casefold()))
        parts = set(re.split(r"[-+._]", name))
        firsts = words, tuple(word for word in words if word not in parts)
        named = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", short, re.IGNORECASE)
        inside = short.casefold() in " ".join(long.split()).casefold()
        if 100 <= len(long) <= 10_000 and seen.isdisjoint(firsts) and not (named or inside):
            seen.update(firsts)
            yield question(name, "", long, short, long)


def one_line(long):
    """A long description with one line per paragraph, and lists as they are."""
    lines, open_line = [], False
    for line in (line[1:].rstrip() for line in long.split("\n")[1:]):
        if line in (".", ""):
            lines.append("")
            open_line = False
        elif open_line and not line.startswith((" ", "\t")) and not ITEM.match(line):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
            open_line = not line.startswith((" ", "\t"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


# Glosses.

KINDS = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
EXAMPLE = re.compile(r'[;:,]?\s*"[^"]+"\s*(?:$|[;,-].*)')
ENDINGS = ("'s", "s", "es", "ed", "ing", "er", "est")


def glosses(share):
    meanings, taken, seen = [], set(), set()
    for name in KINDS:
        for line in Path(share, "wordnet", f"data.{name}").read_text(encoding="utf-8").splitlines():
            # The license comes first, indented.
            if not line.startswith(" "):
                data, _, gloss = line.partition(" | ")
                offset, _, _, count, *rest = data.split(" ")
                words = [re.sub(r"\(\w+\)$", "", x) for x in rest[: 2 * int(count, 16) : 2]]
                words = [word.replace("_", " ") for word in words]
                meanings.append((name, f"{name}/{offset}", words, gloss.strip()))
                taken.update(word.lower() for word in words)
    for name, key, words, gloss in meanings:
        example = EXAMPLE.search(gloss)
        examples = re.findall(r'"([^"]+)"', gloss[example.start() :]) if example else []
        gloss = gloss[: example.start()].strip() if example else gloss
        if len(gloss.split()) < 2 or gloss in seen:
            continue
        seen.add(gloss)
        new = invented_word(key, taken)
        taken.add(new)
        gloss, *examples = [replaced(text, words, new) for text in (gloss, *examples)]
        line = [gloss, *(f'"{x}"' for x in examples if new in x.lower())]
        asked = f"What does the {KINDS[name]} {new} mean?"
        yield question(key, "", f"{new} ({KINDS[name]}): {'; '.join(line)}", asked, gloss)


def invented_word(key, taken):
    """A word that sounds like one, from the hash of a string."""
    word, count = "", 0
    while not word or word in taken:
        value = int(hashlib.sha256(f"{key} {count}".encode()).hexdigest(), 16)
        word, count = "", count + 1
        for letters in ("bdfgklmnprstvz", "aeiou") * 3 + ("bdfgklmnprstvz",):
            value, index = divmod(value, len(letters))
            word += letters[index]
    return word


def replaced(text, words, new):
    """Replaces words of at least three letters, with regular endings, by another word."""
    for word in sorted(map(str.lower, words), key=len, reverse=True):
        forms = {word: "", **{word + end: end for end in ENDINGS}}
        if word[-1] == "e":
            forms |= {word[:-1] + end: end for end in ENDINGS}
        if word[-1] == "y":
            forms |= {f"{word[:-1]}i{end}": end for end in ENDINGS}
        if len(word) > 2:
            known = "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
            form = re.compile(rf"(?<!\w)(?:{known})(?!\w)", re.IGNORECASE)
            text = form.sub(lambda match, forms=forms: new + forms[match[0].lower()], text)
    return text


# Sections of web pages.

PAGES = {
    "anarchism": ("doc/anarchism/html", r"(?:sec[A-J]|append)\d.*\.html"),
    "debian-faq": ("doc/debian/FAQ", r".*\.en\.html"),
}
HEADINGS = {"h1", "h2", "h3", "h4", "title"}
BLOCKS = {"p", "div", "blockquote", "ul", "ol", "li", "dl", "dt", "dd", "pre", "hr"}
DROPPED = {"script", "style", "table", "sup"}
DROPPED_CLASSES = {"navheader", "navfooter", "toc", "footnotes", "book-navigation", "page-links"}
NUMBER = re.compile(r"(?:[A-Z]\.)?\d+(?:\.\d+)*\.?\s+|Section [A-Z] - ")


def faq(share):
    for package, (folder, names) in PAGES.items():
        for path in sorted(Path(share, folder).glob("*.html")):
            if not re.fullmatch(names, path.name):
                continue
            page = Sections()
            page.feed(path.read_text(encoding="utf-8"))
            name = path.name.removesuffix(".html").removesuffix(".en")
            for number, (heading, text) in enumerate(page.found):
                heading = " ".join(heading.split()).removesuffix(" | Anarchist Writers")
                heading = NUMBER.sub("", heading, count=1)
                paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
                text = "\n\n".join(filter(None, paragraphs))
                if heading.endswith("?") and len(text) >= 200:
                    answer = beginning(text)
                    yield question(f"{package}/{name}/{number}", heading, text, heading, answer)


def beginning(text):
    """The first paragraphs of a text, of at most about 1,500 characters."""
    first, *others = text.split("\n\n")
    for paragraph in others:
        if len(first) + 2 + len(paragraph) > 1500:
            break
        first += f"\n\n{paragraph}"
    return first


class Sections(HTMLParser):
    """Reads the headings of a page and the plain text after each of them."""

    def __init__(self):
        super().__init__()
        # Each section is a list of its heading and its text.
        self.found, self.in_heading = [["", ""]], False
        # The element that is dropped, and how many of its kind are open in it.
        self.dropped, self.depth = None, 0

    def handle_starttag(self, tag, attrs):
        classes = (dict(attrs).get("class") or "").split()
        if self.dropped:
            self.depth += tag == self.dropped
        elif tag in DROPPED or not DROPPED_CLASSES.isdisjoint(classes):
            self.dropped, self.depth = tag, 1
        elif tag in HEADINGS:
            self.found.append(["", ""])
            self.in_heading = True
        elif tag in BLOCKS:
            self.found[-1][1] += "\n\n- " if tag == "li" else "\n\n"

    def handle_endtag(self, tag):
        if self.dropped:
            self.depth -= tag == self.dropped
            self.dropped = self.dropped if self.depth else None
        elif tag in HEADINGS:
            self.in_heading = False
        elif tag in BLOCKS:
            self.found[-1][1] += "\n\n"

    def handle_data(self, data):
        if not self.dropped:
            self.found[-1][0 if self.in_heading else 1] += re.sub(r"\s+", " ", data)


SOURCES = {
    "docstrings": (docstrings, sysconfig.get_path("stdlib")),
    "packages": (packages, "/var/lib/apt/lists"),
    "glosses": (glosses, "/usr/share"),
    "faq": (faq, "/usr/share"),
}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("name", choices=SOURCES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source")
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    find, default = SOURCES[args.name]
    found = {}
    for one in find(args.source or default):
        found.setdefault(one["question"].casefold(), one)
    if not found:
        raise SystemExit(f"{args.source or default} has no {args.name}; see --help")
    # Hashes choose the questions within the limit; with a word, as the bare ones decide the split.
    order = sorted(
        found.values(), key=lambda x: hashlib.sha256(f"limit {x['id']}".encode()).digest()
    )
    lines = {split: [] for split in (*SPLITS, "documents")}
    for one in order[: args.limit]:
        line = {"question": one["question"], "answers": [one["answer"]], "passages": [text_of(one)]}
        lines[split_of(one["id"])].append({**line, "documents": [one["id"]]})
        lines["documents"].append({key: one[key] for key in ("id", "title", "text")})
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, values in lines.items():
        if values:
            text = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
            (args.folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    print(f"{', '.join(f'{split} {len(lines[split]):,}' for split in SPLITS)} questions")
    print(f"{len(lines['documents']):,} documents")


if __name__ == "__main__":
    main()
