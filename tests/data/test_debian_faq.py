import collections

import pytest

from rt_keras.data import debian_faq
from rt_keras.data.debian_faq import Sections, beginning

LONG = "This sentence is written repeatedly, until it is long enough. " * 4
ANARCHISM = f"""<!DOCTYPE html>
<html><head><title>A.1 What is it? | Anarchist Writers</title></head><body><div class="content">
<p>It is <i>"this"</i> and
that.</p><p>{LONG}</p>
<table><tr><td><table></table>A table.</td></tr></table>
<h2><a name="seca11">A.1.1 Who said &#8220;no&#8221; &amp; why?</a></h2><blockquote><p>He.
<br>She.</p></blockquote><p>{LONG}</p>
<h2>A.1.2 The commune.</h2><p>{LONG}</p><h2>A.1.3 Is it short?</h2><p>Yes.</p>
<div id="b" class="book-navigation"><div class="page-links clear-block"><a>up</a></div>‹</div>
</div></body></html>"""
DEBIAN = f"""<html><head><title>Chapter 2. Kernels</title><style>body {{}}</style></head><body>
<div class="navheader"><table><tr><th>Chapter 2</th></tr></table><hr /></div>
<h2 class="title"><a id="k"></a>2.1. Can I
install it?</h2><p>
Yes<sup class="footnote">[1]</sup>, with
</p><pre class="screen">
make \\
    deb-pkg
</pre><div class="itemizedlist"><ul><li class="listitem"><p>
one
</p></li><li>two</li></ul></div><p>{LONG}</p>
<div class="footnotes"><div><p>[1] A note.</p></div></div>
<div class="navfooter">Next</div></body>"""


@pytest.fixture
def share(tmp_path):
    files = {
        "doc/anarchism/html/secA1.html": ANARCHISM,
        "doc/anarchism/html/secAcon.html": f"<h2>A.1 Contents?</h2>{LONG}",
        "doc/debian/FAQ/kernel.en.html": DEBIAN,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_sections_become_questions(share):
    left_out = collections.Counter()
    questions = list(debian_faq.find(share, left_out))
    text = LONG.strip()
    assert [(x["id"], x["question"], x["text"]) for x in questions] == [
        ("anarchism/secA1/0", "What is it?", f'It is "this" and that.\n\n{text}'),
        ("anarchism/secA1/1", "Who said “no” & why?", f"He.\nShe.\n\n{text}"),
        (
            "debian-faq/kernel/1",
            "Can I install it?",
            f"Yes, with\n\nmake \\\n    deb-pkg\n\n- one\n\n- two\n\n{text}",
        ),
    ]
    assert all(x["title"] == x["question"] and x["answer"] == x["text"] for x in questions)
    # The commune, and the title of the chapter.
    assert left_out == {"sections without a question": 2, "with a text below 200 characters": 1}


def test_the_answer_is_the_beginning():
    paragraphs = ["a" * 700, "b" * 700, "c" * 700, "d"]
    assert beginning("\n\n".join(paragraphs)) == "\n\n".join(paragraphs[:2])
    assert beginning("a" * 2000 + "\n\nb") == "a" * 2000


@pytest.mark.parametrize(
    "heading, expected",
    [
        ("A.2.11 Why?", "Why?"),
        ("10. Why 2?", "Why 2?"),
        ("8 Why?", "Why?"),
        ("Section A - Why?", "Why?"),
        ("Why A.1 <i>so</i>?", "Why A.1 so?"),
    ],
)
def test_headings_without_their_numbers(heading, expected):
    page = Sections()
    page.feed(f"<h1>{heading}</h1>")
    assert page.sections() == [(expected, "")]


@pytest.mark.parametrize(
    "folder, package", [("doc/anarchism", "anarchism"), ("doc/debian", "debian-faq")]
)
def test_a_package_is_missing(folder, package, share, tmp_path):
    (share / folder).rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=f"has no pages; install {package}"):
        list(debian_faq.find(share, collections.Counter()))
