"""What users mistype: one line names it, before anything is computed or written."""

import shlex
import string

import pytest

from tests.cli.checks import assert_one_line
from tests.data.test_sound_file import write_sound
from tests.models.adapted.llama_folder import write_llama
from tests.models.speech.test_speech_recognizer import make_model

ADAPT = "adapt --output out --model $models/llama"
LOCAL = "'{class: LocalHeads, num_heads: 4, block_size: 8}'"
HEADS, CLUSTERS = "analyze heads --model $run", "analyze clusters --model $run"
ATTENTION = "analyze attention --model $models/llama --text $models/text.txt"
ASK = "ask --index $retrieval/index --model $retrieval/reader a"
COMPARE = "benchmark compare --output out"
SPEED, QUALITY = "benchmark speed", "benchmark quality"
EVALUATE, GENERATE = "evaluate --model $run", "generate --model $run --prompt a"
DOCUMENTS = "index --documents $retrieval/documents.jsonl"
INDEX = f"{DOCUMENTS} --retriever $retrieval/retriever --output out"
TRAIN = "train --output out --config books"
QUICK = "train --output out --config quickstart --set"
TRANSCRIBE = "transcribe --model $models/speech"
MISTAKES = [
    (f"{ADAPT} --heads '{{class: LocalHeads'", "--heads is not valid YAML"),
    (f"{ADAPT} --heads '{{class: LoclHeads, num_heads: 4}}'", "the nearest is LocalHeads"),
    (f"{ADAPT} --heads local.num_heads=4", "heads need a class, as in {class: LocalHeads"),
    (f"{ADAPT} --heads {LOCAL} --layers 7", "a list of ints from 0 to 1"),
    (f"{ADAPT} --heads {LOCAL} --layers last", "--layers must be numbers from 0, or global"),
    (f"{ADAPT} --layers 1", "--layers needs --heads"),
    (f"{ADAPT} --keys 8 --heads {LOCAL}", "--keys and --heads are mutually exclusive"),
    ("adapt --output out --model no_such", "model must be an existing folder"),
    (f"{ATTENTION} --keys 12", "--keys must be a multiple of 8. Received: 12"),
    (f"{ATTENTION} --text no_such.txt", "--text must be a text file. Received: "),
    (f"{ATTENTION} --model no_such", "model must be an existing folder"),
    (ATTENTION, "tokens; 2,048 are needed"),
    ("analyze causality --model $run --positions 0", "--positions must be at least 1. Received: 0"),
    (f"{HEADS} --positions 513", "--positions must be from 1 to 512. Received: 513"),
    (f"{HEADS} --heads 0.0", "--heads needs --plot"),
    (f"{HEADS} --plot a.png --heads 0.2", "must be LAYER.HEAD from 0.0 to 0.1. Received: 0.2"),
    (f"{CLUSTERS} --sequences 0", "--sequences must be at least 1"),
    (f"{CLUSTERS} --plot clusters", "--plot must end in .png"),
    (f"{ASK} --model $retrieval/retriever", "holds a retriever model, not a reader"),
    (f"{ASK} ' '", "QUESTION must not be empty"),
    (f"{ASK} --passages 3", "--passages must be from 1 to 2"),
    (f"{ASK} --top-p 1.5", "--top-p must be from 0 to 1. Received: 1.5"),
    (f"{COMPARE} quickstart --seeds 0", "--seeds must be at least 1"),
    (f"{COMPARE} quickstart:model.num_layer=1", "unknown key"),
    (f"{COMPARE} no_such.yaml", "there is no configuration 'no_such.yaml'"),
    (f"{SPEED} --lengths 1000", "multiples of --window 256"),
    (f"{SPEED} --lengths 0", "multiples of --window 256"),
    (f"{SPEED} generation --lengths 128", "above --tokens 128"),
    (f"{SPEED} step --kinds lsh", "--kinds of step must be among full, "),
    (f"{SPEED} step --rivals torch_full", "--rivals are for attention. Received: step"),
    (f"{SPEED} --repeats 0", "--repeats must be at least 1. Received: 0"),
    (f"{QUALITY} --seeds 0", "--seeds must be at least 1. Received: 0"),
    (f"{QUALITY} --steps 30", "--steps must be a multiple of the number of tests"),
    (f"{QUALITY} --width 100", "--width must be a multiple of 8. Received: 100"),
    (f"{QUALITY} --learning-rate 0", "--learning-rate must be above 0. Received: 0"),
    (f"{QUALITY} --directory books", "--directory needs the task text. Received: --tasks recall"),
    (f"{QUALITY} --length 7", "--length must be at least 8 for recall. Received: 7"),
    (f"{QUALITY} --tasks mqar --length 100", "among 64, 128, 256, 512 for mqar. Received: 100"),
    (f"{EVALUATE} --data no/such", "no/such; there is no such folder"),
    (f"{EVALUATE} --plot a.png", "--plot needs --context stateful"),
    (f"{EVALUATE} --context stateful --plot a.txt", "--plot must end in .png"),
    (f"{EVALUATE} --sequence-length 0", "--sequence-length must be at least 1. Received: 0"),
    ("evaluate --model $run/model", "--data is missing"),
    ("generate --model $run", "--prompt is missing"),
    (f"{GENERATE} --max-length 0", "--max-length must be at least 1. Received: 0"),
    (f"{GENERATE} --temperature 0", "0.0"),
    (f"{GENERATE} --top-p 0.5", "--top-p does not apply to sampler random"),
    (f"{GENERATE} --image x.png", "--image does not apply"),
    (f"{GENERATE} b --stream", "--stream is for one --prompt"),
    (f"{GENERATE} --stop 'no such'", "--stop must be tokens"),
    (f"{GENERATE} --model no/such", "no/such"),
    (f"{GENERATE} --model $models/llama", "a model of type 'llama'"),
    (f"{INDEX} --documents nothing", "--documents is nothing, which does not exist"),
    (f"{INDEX} --retriever $retrieval/reader", "holds a reader model, not a retriever"),
    (f"{INDEX} --passage-length 31", "length must be at most 30"),
    (f"{INDEX} --overlap 30", "overlap must be from 0 to 29"),
    ("quickstart --output $run", "already exists; name a new"),
    ("train --output out", "--config is missing"),
    (f"{TRAIN} --config bokos", "'bokos'"),
    (f"{TRAIN} --resume", "no run to resume"),
    (f"{TRAIN} --data pg91", "or a folder or text file"),
    (f"{TRAIN} --data pg19 --set data.directory=x", "directory=x are mutually exclusive"),
    (f"{QUICK} optimizer.learning_rat=1", "nearest known key is optimizer.learning_rate"),
    (f"{QUICK} data.batch_size=two", "batch_size=two: data.batch_size is 'two' (str); it must be"),
    (
        f"{QUICK} data.name=text_folder --set data.directory=nowhere",
        "=nowhere: data: directory must",
    ),
    (f"{QUICK} 'model.heads=[{{class: LocalHead}}]'", "unknown class LocalHead; the nearest is"),
    (f"{QUICK} model.heads[0].num_cluster=4", "num_cluster=4: model.heads[0]: num_cluster is unk"),
    (
        f"{QUICK} model.heads[0].num_clusters=-1",
        "num_clusters=-1: model.heads[0]: num_clusters must",
    ),
    (f"{QUICK} model.hidden_dim=15", "heads must divide the 15 features"),
    (
        f"{QUICK} model.normalization=norm",
        "normalization=norm: model: normalization must be one of",
    ),
    (f"{QUICK} model.preset=nowhere", "nowhere holds neither a run nor a preset"),
    (f"{TRANSCRIBE} $models/a.wav no.wav", "no.wav does not exist"),
    (f"{TRANSCRIBE} $models/text.txt", "not a sound"),
    (f"{TRANSCRIBE} $models/a.wav --beam-width 0", "--beam-width must be at least 1. Received: 0"),
    ("transcribe --model $run $models/a.wav", "not one of speech"),
]


@pytest.fixture(scope="module")
def folders(tiny_run, retrieval_folder, tmp_path_factory):
    """The folders that commands name."""
    models = tmp_path_factory.mktemp("models")
    write_llama(models / "llama")
    make_model().save_to_preset(models / "speech")
    write_sound(models / "a.wav")
    (models / "text.txt").write_text("the cat sat on the mat. " * 40, encoding="utf-8")
    return {"run": tiny_run, "retrieval": retrieval_folder, "models": models}


@pytest.mark.parametrize("command, message", MISTAKES)
def test_a_mistake_gives_one_line(run, folders, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    if command.startswith("adapt"):
        # It is found before weights are read.
        monkeypatch.setattr("rt_keras.models.adapted.folders.TensorFiles.read", None)
    status, output, error = run(*shlex.split(string.Template(command).substitute(folders)))
    assert_one_line(status, error, message)
    assert not output and not list(tmp_path.iterdir())
