"""The programs beside the benchmarks' pages make small data sets from small sources."""

import gzip
import io
import json
import runpy
import sys
import tarfile
from pathlib import Path

import pytest

from rt_keras.data import SentencePieceTokenizer
from rt_keras.data.text_folder import SPLITS, split_of
from tests.data.checks import write_texts as write

RECIPES = Path(__file__).parents[2] / "docs" / "benchmarks" / "recipes"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a recipe with words, the programs in `bin` first, and what is installed in `share`."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("SHARE", str(tmp_path / "share"))

    def run_recipe(name, *words):
        for program in tmp_path.glob("bin/*"):
            program.chmod(0o755)
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(RECIPES / f"{name}.py", run_name="__main__")

    return run_recipe


# Prints what it reads as a manual page: a title, bold text, and a date below.
MANDOC = "#!/bin/sh\necho 'title(1)'\nsed 's/bold/b\\x08bo\\x08ol\\x08ld\\x08d/'\necho date\n"


def test_manual_pages_in_both_languages_become_text(run, tmp_path):
    bold = gzip.compress(b"a bold\ntext\n")
    pages = {"en/man1/a.1.gz": bold, "en/man3/alone.3": "x\n", "de/man1/a.1": "a\nb\n"}
    # It includes another page.
    pages |= {f"{side}/man1/b.1": ".so man1/a.1\n" for side in ("en", "de")}
    write(tmp_path, {**pages, "bin/mandoc": MANDOC})
    run("manual_pages", *(tmp_path / name for name in ("out", "en", "de")))
    found = sorted(str(x.relative_to(tmp_path / "out")) for x in (tmp_path / "out").rglob("*.txt"))
    assert found == ["source/man1/a.1.txt", "target/man1/a.1.txt"]
    assert (tmp_path / "out/source/man1/a.1.txt").read_text() == "a bold\ntext"


DIALOGUE = 'dialogId("m-hlava", "font", "What?")\ndialogStr("Co je  to?")\n'
PROMPTS = gzip.compress(b"; comment\ndigits/1:one\nbeep: [a beep]\n")
# It speaks as espeak-ng does, in silence.
ESPEAK = '#!/bin/sh\necho "$2 $6" > "$4"\n'
GAME, SOUNDS = "share/games/fillets-ng", "share/asterisk/sounds/en_US_f_Allison"


@pytest.mark.parametrize(
    "words, listed",
    [
        (["fillets"], "city/m-hlava.ogg\tco je to\n"),
        (["asterisk"], "digits/1.wav\tone\n"),
        (["lines.txt", "cs", "nl"], "00000/0000000.wav\tco je to\n00000/0000001.wav\tnic\n"),
    ],
)
def test_sounds_are_listed_with_their_texts(run, tmp_path, monkeypatch, words, listed):
    write(tmp_path, {f"{GAME}/script/city/dialogs_cs.lua": DIALOGUE, "bin/espeak-ng": ESPEAK})
    write(tmp_path, {f"{GAME}/sound/city/cs/m-hlava.ogg": "sound", f"{SOUNDS}/digits/1.wav": "one"})
    write(tmp_path, {"share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz": PROMPTS})
    write(tmp_path, {"lines.txt": "Co je to?\n\nNic.\n"})
    monkeypatch.chdir(tmp_path)
    run("speech", "out", *words)
    assert Path("out/transcripts.tsv").read_text(encoding="utf-8") == listed
    for line in listed.splitlines():
        assert Path("out", line.partition("\t")[0]).is_file()


LONG = "It is long enough to be kept, since it has more letters than a line of a list would have. "
HUT = '00012345 06 n 01 hut 0 000 | a small house; "she has huts"  \n'
SOURCES = {
    "docstrings": {"b/c.py": 'def dedent(x):\n    """Removes spaces from all lines."""\n'},
    "packages": {
        "x_Translation-en": f"Package: p\nDescription: Short\n Number one.\n {LONG}{LONG}\n"
    },
    "glosses": {f"wordnet/data.{name}": HUT if name == "noun" else "" for name in ("noun", "verb")},
    "faq": {"doc/debian/FAQ/a.en.html": f"<h2>1.2. Why?</h2><p>{3 * LONG}</p><sup>9</sup>"},
}
SOURCES["glosses"] |= {"wordnet/data.adj": "  license\n", "wordnet/data.adv": ""}
ASKED = {
    "docstrings": ("What does dedent do, in b.c?", "Removes spaces from all lines."),
    "packages": ("Short", f"Number one. {2 * LONG}".strip()),
    "glosses": ("What does the noun zukebaf mean?", "a small house"),
    "faq": ("Why?", (3 * LONG).strip()),
}


@pytest.mark.parametrize("name", SOURCES)
def test_questions_are_in_the_split_of_their_documents(run, tmp_path, name):
    write(tmp_path / "source", SOURCES[name])
    run("questions", name, tmp_path / "out", "--source", tmp_path / "source", "--limit", "5")
    (document,) = map(json.loads, (tmp_path / "out/documents.jsonl").read_text().splitlines())
    (split,) = (x for x in SPLITS if (tmp_path / f"out/{x}.jsonl").exists())
    line = json.loads((tmp_path / f"out/{split}.jsonl").read_text())
    assert split == split_of(document["id"]) and line["documents"] == [document["id"]]
    assert (line["question"], *line["answers"]) == ASKED[name]
    assert document["text"] in line["passages"][0]


def test_source_of_linux_is_without_its_licenses(run, tmp_path):
    code = "/* SPDX: GPL */\n" + "int main(void) { return sum(x); }\n" * 40
    with tarfile.open(tmp_path / "linux.tar.xz", "w:xz") as tar:
        for name in ("a.c", "kernel/a.c", "tools/b.c", "kernel/short.c"):
            content = (code if name != "kernel/short.c" else "int x;").encode()
            info = tarfile.TarInfo(f"linux/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    run("linux_source", tmp_path / "out", tmp_path / "linux.tar.xz")
    texts = [path.read_text() for path in sorted((tmp_path / "out").rglob("*.txt"))]
    assert len(texts) == 2 and all(text.startswith("int main") for text in texts)


def test_figures_are_drawn(run, tmp_path):
    shared = {"kind": "full", "pass": "step", "seconds": 1, "peak_bytes": 1}
    figures = [{**shared, "length": n} for n in (1, 2)]
    write(tmp_path, {"a.json": json.dumps({"benchmark": "speed", "figures": figures})})
    run("draw", tmp_path / "a.json", tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


def test_a_vocabulary_is_of_the_texts_for_training(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    line = {"question": "why is it?", "answers": ["since it is."], "passages": ["It is."]}
    write(tmp_path, {f"questions/{split}.jsonl": json.dumps(line) for split in SPLITS})
    words = ("question_folder", tmp_path / "questions", 300, tmp_path / "a.spm", "characters")
    run("vocabulary", *words)
    tokenizer = SentencePieceTokenizer(str(tmp_path / "a.spm"))
    assert {"w", "s", "I"} <= set(tokenizer.get_vocabulary())
