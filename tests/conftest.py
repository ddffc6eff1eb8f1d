import fcntl
import gc
import io
import os
import resource
import shutil
import sys
from pathlib import Path

import hypothesis
import pytest

from tests.processes import COMPILE_FAST

# First calls trace and compile, so the time of one example is not meaningful.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# Another processor's numbers, for which oneDNN can be held to fewer instructions. TensorFlow's
# kernels ask the processor, not oneDNN, and would end the process where it has bfloat16. TensorFlow
# reads this when a folder's own conftest imports it, before pytest is configured.
if "ONEDNN_MAX_CPU_ISA" in os.environ:
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

peaks = {}


def pytest_configure(config):
    # Several workers share the processor: threads of one would wait for those of another.
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
        os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
    os.environ["XLA_FLAGS"] = f"{COMPILE_FAST} {os.environ.get('XLA_FLAGS', '')}"
    # Imports and tracing make many objects that stay, and little garbage.
    gc.set_threshold(100_000, 10, 10)


def pytest_collection_finish(session):
    """Less time and memory for the many functions that tests trace."""
    from tensorflow.python.util import tf_stack

    trace_fast()
    # TensorFlow keeps the call stack of every operation; pytest's make half of what a compiled
    # function holds on to. All operations share one.
    stack = tf_stack.extract_stack()
    tf_stack.extract_stack = lambda stacklevel=1: stack
    # Imported objects stay, so the garbage collector does not need to search them repeatedly.
    gc.collect()
    gc.freeze()


def trace_fast():
    """Traces functions faster than for users, who run them more often.

    Other processes that tests start trace as users do, unless they call this too, as those must of
    which a test compares the bits with its own.
    """
    import tensorflow as tf
    from tensorflow.python.autograph.core import config

    # AutoGraph takes a third of the time of tracing, and finds nothing to convert in the packages.
    plain = map(config.DoNotConvert, ("rt_keras", "keras_hub"))
    config.CONVERSION_RULES = (*plain, *config.CONVERSION_RULES)
    # Most functions run only once, and few are optimized by XLA.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture(scope="module", autouse=True)
def garbage_is_gone_after_a_module():
    """Collects models: cyclic garbage, which Python searches for less often as memory fills.

    What stays need not be searched again: where Keras quantizes a layer, it asks for each weight.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def clients():
    """The modules of the two Python clients of a server; they find each other as scripts do."""
    folder = str(Path(__file__).parent.parent / "export")
    sys.path.insert(0, folder)
    import client_grpc
    import client_rest

    yield client_grpc, client_rest
    sys.path.remove(folder)


def peak_memory():
    """The peak resident memory of this process and the largest of its children, in GB."""
    # Linux counts in KiB.
    return [
        resource.getrusage(who).ru_maxrss * 1024 / 1e9
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]


def pytest_sessionfinish(session):
    worker = getattr(session.config, "workeroutput", None)
    if worker is not None:
        worker["peak_memory"] = peak_memory()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    peaks[node.gateway.id] = getattr(node, "workeroutput", {}).get("peak_memory")


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("peak memory")
    for name, peak in (peaks or {"pytest": peak_memory()}).items():
        if peak:
            terminalreporter.line(f"{name}: {peak[0]:.1f} GB, a child of it {peak[1]:.1f} GB")


@pytest.fixture(scope="session")
def sentence_piece_model():
    """A tiny SentencePiece model, padding 0, end of text 1."""
    import sentencepiece

    text = "the quick brown fox jumps over the lazy dog, and the dog sleeps on"
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text] * 20),
        model_writer=model,
        vocab_size=34,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture(scope="session")
def word_piece_vocabulary():
    """A tiny WordPiece vocabulary, padding 0, end of text 2."""
    return ["[PAD]", "[UNK]", "[SEP]", "the", "quick", "fox", "jump", "##s", "dog", ",", "."]


@pytest.fixture(scope="session")
def t2t_vocabulary():
    """A tiny vocabulary of Tensor2Tensor, padding 0, end of text 1."""
    characters = sorted(set("<pad>_<EOS>_the quick fox jumps, the dog.\\u;0123456789"))
    return ["<pad>_", "<EOS>_", "the_", "fox_", "jump", *characters]


@pytest.fixture(params=["bytes", "sentence_piece", "word_piece", "t2t_subwords", "words"])
def tokenizer(request):
    """Each of the tokenizers in turn."""
    from rt_keras import convert, data

    if request.param == "bytes":
        return data.ByteTokenizer()
    if request.param == "sentence_piece":
        return data.SentencePieceTokenizer(request.getfixturevalue("sentence_piece_model"))
    if request.param == "t2t_subwords":
        return convert.T2TSubwordTokenizer(request.getfixturevalue("t2t_vocabulary"))
    if request.param == "words":
        words = ["the", "quick", "fox", "dog", "jumps", "jumps,", "jumps."]
        return data.WordTokenizer(["<pad>", "<EOS>", "<unk>", *words])
    return data.WordPieceTokenizer(request.getfixturevalue("word_piece_vocabulary"))


def made_once(tmp_path_factory, name, make):
    """A folder or file of all workers, which the first to want it makes; not to be changed."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, unfinished = root / name, root / f"{name}_unfinished"
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(folder)
    return folder


@pytest.fixture(scope="session")
def books(tmp_path_factory):
    """A folder of texts laid out as PG-19 is; returns its path."""
    return made_once(tmp_path_factory, "books", write_books)


def write_books(folder):
    for split, count in (("train", 3), ("validation", 1), ("test", 2)):
        (folder / split).mkdir(parents=True)
        for number in range(count):
            lines = [f"{split} {number}: the café opens at {hour}.\n" for hour in range(12)]
            (folder / split / f"{number}.txt").write_text("".join(lines), encoding="utf-8")


@pytest.fixture(scope="session")
def tiny_settings(books, tmp_path_factory):
    """Keys of a configuration that trains in seconds."""
    from rt_keras.data import load_documents
    from tests.training.tasks.checks import TINY

    # Two workers at once would each prepare it.
    prepared = made_once(
        tmp_path_factory,
        "prepared",
        lambda folder: load_documents("text_folder", "train", books, folder),
    )
    return {
        **TINY,
        "model.heads": [
            {"class": "RoutingHeads", "num_heads": 1, "num_clusters": 2, "window_size": 16},
            {"class": "LocalHeads", "num_heads": 1, "block_size": 16},
        ],
        "data.name": "text_folder",
        "data.directory": str(books),
        "data.data_dir": str(prepared),
        "data.sequence_length": 32,
        "trainer.steps": 4,
        "trainer.validation_every": 2,
    }


@pytest.fixture(scope="session")
def tiny_run(tiny_settings, tmp_path_factory):
    """The folder of a finished run; not to be changed."""
    from rt_keras.training import config, run

    return made_once(
        tmp_path_factory,
        "tiny_run",
        lambda folder: run.train(config.make_config(tiny_settings), folder, verbose=0),
    )


@pytest.fixture(scope="session")
def retrieval_folder(tmp_path_factory):
    """A folder of "documents.jsonl", "retriever", "reader" and "index"; not to be changed."""
    from rt_keras.retrieval import build_index
    from tests.retrieval import made

    def make(folder):
        folder.mkdir()
        made.write_documents(folder / "documents.jsonl")
        made.make_reader().save_to_preset(folder / "reader")
        retriever = made.make_retriever()
        retriever.save_to_preset(folder / "retriever")
        build_index(folder / "documents.jsonl", retriever, folder / "index")

    return made_once(tmp_path_factory, "retrieval", make)


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """The SavedModel of `tests.serving.served.model`, exported once for all workers."""
    from tests.serving.served import Served, export

    return Served(made_once(tmp_path_factory, "served", export) / "rt_keras" / "1")
