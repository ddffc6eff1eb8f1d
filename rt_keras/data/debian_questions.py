"""Makes a folder of questions, with their answers and documents, from packages of Debian.

- `packages`: the short descriptions of Debian's packages, answered by the long ones.
- `docstrings`: the classes and functions of Python's standard library, described in one sentence.
- `glosses`: the meanings of words in WordNet (package `wordnet-base`). Invented words replace them,
  so that the answer is in the document alone.
- `faq`: the questions with long answers of the packages `anarchism` and `debian-faq`.

The folder has `train.jsonl`, `validation.jsonl` and `test.jsonl`, whose lines are JSON objects with
"question", "answers", "passages" (the texts that contain the answers) and "documents" (their ids),
and `documents.jsonl` with "id", "title" and "text".
"""

import argparse
import collections
import functools
import hashlib
import json
import sys
from pathlib import Path

from rt_keras.data import debian_faq, debian_packages, docstrings, wordnet_glosses
from rt_keras.data.document_source import text_of
from rt_keras.data.text_folder import SPLITS, split_of
from rt_keras.files import check_new_folder, whole_folder
from rt_keras.progress import track

TWICE = "with a question that another has"


def main(arguments=None):
    """Writes the folder and prints how much is in it.

    Args:
        arguments: list of strings. Defaults to None, for those of the command line.

    Returns:
        The exit status: 1 if a package is missing or the folder cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m rt_keras.data.debian_questions",
        description="Writes questions with their answers and documents, from Debian's packages, to "
        "a folder.",
    )
    names = ["packages", "docstrings", "glosses", "faq"]
    parser.add_argument("name", choices=names, help="which questions")
    parser.add_argument("folder", help="the new folder")
    parser.add_argument("--limit", type=int, help="the most questions to write")
    parser.add_argument("--share", default="/usr/share", help="where packages are installed")
    parser.add_argument(
        "--source",
        help="what to read instead of what is installed: of packages, a list of them or a folder "
        "of lists; of docstrings, a folder of .py files",
    )
    args = parser.parse_args(arguments)
    if args.limit is not None and args.limit < 1:
        parser.error(f"--limit must be at least 1. Received: {args.limit}")
    if args.source is not None and args.name not in ("packages", "docstrings"):
        parser.error("--source is for packages and docstrings; use --share")
    left_out = collections.Counter()
    try:
        check_new_folder(args.folder)
        found = find(args.name, left_out, args.share, args.source)
        found = track(found, "reading", unit="questions")
        counts = write_folder(chosen(found, args.limit, left_out), args.folder)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{', '.join(f'{split} {counts[split]:,}' for split in SPLITS)} questions")
    print(f"{counts.total():,} documents")
    for reason, count in left_out.most_common():
        print(f"left out: {count:,} {reason}")
    return 0


def find(name, left_out, share="/usr/share", source=None):
    """Finds the questions of a name, one for each document.

    Args:
        name: string, "packages", "docstrings", "glosses" or "faq".
        left_out: `collections.Counter`, in which reasons to leave out a question are counted.
        share: path of the folder where packages are installed. Defaults to "/usr/share".
        source: path of what to read instead: for packages, a list or a folder of lists; for
            docstrings, a folder of .py files. Defaults to None, what is installed.

    Returns:
        An iterator of dictionaries of strings: the "id", the "title" and the "text" of the
        document, the "question" and its "answer".

    Raises:
        FileNotFoundError: if a package is not installed.
    """
    sources = {
        "packages": functools.partial(debian_packages.find, source or debian_packages.LISTS),
        "docstrings": functools.partial(docstrings.find, source),
        "glosses": functools.partial(wordnet_glosses.find, share),
        "faq": functools.partial(debian_faq.find, share),
    }
    return sources[name](left_out)


def chosen(found, limit, left_out):
    """Returns questions without those that occur again.

    Args:
        found: iterable of questions as from `find`.
        limit: int, the most questions to return, or None for all. Hashes of the ids choose them.
        left_out: `collections.Counter`, in which the reasons are counted.

    >>> import collections
    >>> found = [{"id": "1", "question": "Who?"}, {"id": "2", "question": "who?"}]
    >>> chosen(found, None, collections.Counter())
    [{'id': '1', 'question': 'Who?'}]
    """
    questions = {}
    for question in found:
        key = question["question"].casefold()
        left_out[TWICE] += key in questions
        questions.setdefault(key, question)
    left_out += collections.Counter()  # Without zeros.
    questions = list(questions.values())
    if limit is None or limit >= len(questions):
        return questions
    left_out["over the limit"] += len(questions) - limit
    kept = set(sorted(_hash(x["id"]) for x in questions)[:limit])
    return [question for question in questions if _hash(question["id"]) in kept]


def _hash(name):
    # With a prefix, as the bare hash decides the split.
    return hashlib.sha256(f"limit {name}".encode()).hexdigest()


def write_folder(questions, folder):
    """Writes questions and documents to a new folder. The hash of its document assigns the split.

    Args:
        questions: list of dictionaries as from `find`.
        folder: path of the new folder, which is written atomically.

    Returns:
        `collections.Counter` of the questions in each split.

    Raises:
        ValueError: if there are no questions.
    """
    if not questions:
        raise ValueError("no questions are found; all are left out")
    lines = {split: [] for split in (*SPLITS, "documents")}
    for question in questions:
        line = {
            "question": question["question"],
            "answers": [question["answer"]],
            "passages": [text_of(question)],
            "documents": [question["id"]],
        }
        lines[split_of(question["id"])].append(line)
        lines["documents"].append({key: question[key] for key in ("id", "title", "text")})
    with whole_folder(folder) as part:
        for name, values in lines.items():
            # A split without questions has no file.
            if not values:
                continue
            text = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
            Path(part, f"{name}.jsonl").write_text(text, encoding="utf-8")
    return collections.Counter({split: len(lines[split]) for split in SPLITS})


if __name__ == "__main__":
    sys.exit(main())
