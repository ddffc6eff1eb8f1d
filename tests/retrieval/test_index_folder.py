import shutil
from pathlib import Path

import numpy as np
import pytest

from rt_keras import retrieval
from rt_keras.data import shards
from rt_keras.data.document_source import text_of
from rt_keras.retrieval import build_index, index_folder, read_index
from rt_keras.retrieval.passages import cut
from tests.retrieval import made

# Enough for some files of 3 passages each.
SHARD_BYTES = 300
LENGTH, OVERLAP = 24, 8


@pytest.fixture(scope="module", autouse=True)
def small_shards():
    """An index in several files, and several batches of texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_folder, "SHARD_BYTES", SHARD_BYTES)
        patch.setattr(index_folder, "PASSAGES_AT_ONCE", 4)
        yield


@pytest.fixture(scope="module")
def retriever():
    return made.make_retriever()


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    return made.write_documents(tmp_path_factory.mktemp("documents") / "documents.jsonl")


@pytest.fixture(scope="module")
def built(documents, retriever, tmp_path_factory):
    """An index, not to be changed."""
    folder = tmp_path_factory.mktemp("built") / "index"
    assert build_index(documents, retriever, folder, LENGTH, OVERLAP) == folder
    return folder


@pytest.fixture
def index(built, tmp_path):
    """A copy of an index."""
    return Path(shutil.copytree(built, tmp_path / "index"))


def files_of(folder):
    """The bytes of the manifest and its files, without parts that a killed process left behind."""
    paths = [folder / "manifest.json", *folder.glob("[!.]*.npz")]
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.slow
def test_an_index_has_the_passages_and_their_embeddings(built, retriever, monkeypatch):
    load, opened = np.load, []
    monkeypatch.setattr(np, "load", lambda path: opened.append(load(path)) or opened[-1])
    index, tokenizer = read_index(built), retriever.preprocessor.tokenizer
    assert all(part.zip is None for part in opened)  # No file stays open.
    expected = sum((cut(line, tokenizer, LENGTH, OVERLAP) for line in made.LINES), [])
    assert index.passages == expected and len(expected) > 9
    assert len(opened) > 2
    vectors = retriever.embed_texts([text_of(passage) for passage in expected])
    np.testing.assert_allclose(index.vectors.vectors, vectors, atol=1e-6)
    assert type(index.vectors) is retrieval.ExactIndex
    assert not list(built.rglob("*.part*"))


def test_the_best_passages_are_found_first(built, retriever):
    index = read_index(built)
    # As many tokens as the retriever reads of a question, with start and end.
    text = text_of(index.passages[5])[:18]
    (found,), (again,) = index.search([text], 4), index.search([text + " and more"], 4)
    scores = [passage["score"] for passage in found]
    assert len(found) == 4 and scores == sorted(scores, reverse=True)
    assert again == found
    exact = (retriever.embed_texts([text]) @ np.asarray(index.vectors.vectors).T)[0]
    best = [index.passages[number] for number in np.argsort(-exact, kind="stable")[:4]]
    assert [{x: y for x, y in passage.items() if x != "score"} for passage in found] == best
    assert len(index.search(["a", "b"], 999)[1]) == len(index.passages)
    with pytest.raises(ValueError, match="question must not be empty. Received: ' '"):
        index.search(["a", " "], 1)
    assert index.search([], 1) == []
    with pytest.raises(ValueError, match="must be a list of strings. Received: questions='why'"):
        index.search("why", 1)


def test_a_resumed_build_embeds_in_the_same_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(index_folder, "SHARD_BYTES", 190)
    # Batches with a long text are padded to 128 tokens, and others to 64.
    retriever = made.make_retriever(130)
    texts = ["a short text", "one", "more of it", "long " * 24, *["short again"] * 7]
    lines = [{"id": str(number), "text": f"{text} {number}"} for number, text in enumerate(texts)]
    documents, embedded = made.write_documents(tmp_path / "documents.jsonl", lines), []
    embed, folder = retriever.embed_texts, build_index(documents, retriever, tmp_path / "whole")

    def embed_some(texts):
        if len(embedded) == 2 and not (tmp_path / "stopped").exists():
            (tmp_path / "stopped").touch()
            raise KeyboardInterrupt
        embedded.append(texts)
        return embed(texts)

    monkeypatch.setattr(retriever, "embed_texts", embed_some)
    with pytest.raises(KeyboardInterrupt):
        build_index(documents, retriever, tmp_path / "parts")
    done = shards.read_manifest(tmp_path / "parts")["shards"]
    assert sum(shard["items"] for shard in done) % 4
    build_index(documents, retriever, tmp_path / "parts")
    assert [len(text) > 64 for text in embedded[0]] == [False, False, False, True]
    assert all(texts in embedded[:2] or len(texts) == 3 for texts in embedded[2:])
    assert files_of(tmp_path / "parts") == files_of(folder)


# === Damage ===


def test_a_flipped_byte_in_any_file_is_found(index):
    paths = [path for path in index.rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(paths) > 8
    for path in paths:
        content = path.read_bytes()
        for place in (0, len(content) // 2, len(content) - 2):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises((ValueError, FileNotFoundError), match=r"damaged|No such file"):
                read_index(index)
        path.write_bytes(content)
    read_index(index)


def test_another_retriever_in_the_folder_is_refused_and_a_missing_one_written(
    index, built, documents, retriever
):
    other = made.make_retriever()
    other.set_weights([-weight for weight in retriever.get_weights()])
    shutil.rmtree(index / "retriever")
    other.save_to_preset(index / "retriever")
    with pytest.raises(ValueError, match="is not the retriever that the index was built with"):
        read_index(index)
    shutil.rmtree(index / "retriever")
    with pytest.raises(FileNotFoundError, match="retriever"):
        read_index(index)
    build_index(documents, retriever, index, LENGTH, OVERLAP)
    assert read_index(index).passages == read_index(built).passages


# === Other contents ===


def test_a_folder_of_another_index_is_refused(index, documents, retriever, tmp_path):
    others = made.write_documents(tmp_path / "documents.jsonl", made.LINES[:2])
    before = files_of(index)
    for arguments, name in [
        ((documents, made.make_retriever(40), index, LENGTH, OVERLAP), "retriever"),
        ((documents, made.make_retriever(pooling="first"), index, LENGTH, OVERLAP), "retriever"),
        ((others, retriever, index, LENGTH, OVERLAP), "documents"),
        ((documents, retriever, index, LENGTH + 1, OVERLAP), "length"),
        ((documents, retriever, index, LENGTH, OVERLAP + 1), "overlap"),
    ]:
        with pytest.raises(ValueError, match=f"{index} holds packed data whose {name} is"):
            build_index(*arguments)
    assert files_of(index) == before


@pytest.mark.parametrize(
    "lines, message",
    [
        (made.LINES * 4, "documents has two with the id 'sky'"),
        ([{"id": "a", "text": " "}], "documents has no text"),
    ],
)
def test_wrong_documents_are_refused_before_the_first_passage_is_embedded(
    retriever, tmp_path, monkeypatch, lines, message
):
    monkeypatch.setattr(retriever, "embed_texts", None)
    documents = made.write_documents(tmp_path / "documents.jsonl", lines)
    with pytest.raises(ValueError, match=message):
        build_index(documents, retriever, tmp_path / "index")
    with pytest.raises(FileNotFoundError, match="does not exist|nothing"):
        build_index(tmp_path / "nothing", retriever, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_an_index_among_its_documents_is_refused(tmp_path, retriever):
    (tmp_path / "a.txt").write_text("A text.")
    with pytest.raises(ValueError, match="folder must be outside of the documents"):
        build_index(tmp_path, retriever, tmp_path / "deep" / "index")
    assert not (tmp_path / "deep").exists()


def test_retrievers_that_cannot_make_an_index_are_refused(documents, tmp_path):
    retriever = made.make_retriever()
    retriever.backbone.enable_lora(2)
    with pytest.raises(ValueError, match="retriever must have no low-rank updates"):
        build_index(documents, retriever, tmp_path / "index")
    retriever = made.make_retriever()
    table = retriever.backbone.token_embedding.embeddings
    table.assign(table * np.nan)
    with pytest.raises(ValueError, match="embeddings must be finite"):
        build_index(documents, retriever, tmp_path / "index")
    retriever.preprocessor = None
    with pytest.raises(ValueError, match="retriever must have a preprocessor"):
        build_index(documents, retriever, tmp_path / "index")
    assert not list(tmp_path.rglob("*.npz"))


def test_a_retriever_of_half_precision_is_known_again(documents, tmp_path):
    retriever = made.make_retriever(dtype="bfloat16")
    index = read_index(build_index(documents, retriever, tmp_path / "index"))
    # Keras's policy, float32.
    assert index.retriever.dtype_policy.name == "float32"
    for found, expected in zip(index.retriever.weights, retriever.weights, strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy().astype("float32"))


def test_documents_without_text_are_left_out(retriever, tmp_path):
    lines = [{"id": "empty-one", "text": " "}, *made.LINES[:1]]
    documents = made.write_documents(tmp_path / "documents.jsonl", lines)
    with pytest.warns(UserWarning, match="^1 documents have no text, such as empty-one$"):
        index = read_index(build_index(documents, retriever, tmp_path / "index"))
    assert {passage["document"] for passage in index.passages} == {"sky"}
