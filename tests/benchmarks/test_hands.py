import pytest

import rt_keras
from rt_keras.benchmarks import hands
from rt_keras.layers import LocalHeads
from tests.benchmarks.checks import parse
from tests.models.adapted.llama_folder import write_llama


def test_contenders_take_turns_and_only_adapted_models_are_exported():
    args = parse(hands, model="models/llama", prompt_lengths=(8, 90, 8), repeats=2)
    found = [(x["task"], x["length"], x["kind"], x["turn"]) for x in hands.cells(args)]
    turns = [("keras_hub", 0), ("adapt", 0), ("keras_hub", 1), ("adapt", 1)]
    fits = [(name, 512) for name in ("fit_lora", "fit_all")]
    cells = [(*x, *turn) for x in [("generate", 8), ("generate", 90), *fits] for turn in turns]
    assert found == [*cells, ("export", None, "adapt", 0), ("export", None, "adapt", 1)]


def figure(task, length, kind, **waits):
    settings = {"name": "llama", "task": task, "length": length, "kind": kind}
    return {"settings": settings, "machine": "a machine", "waits": waits}


def test_the_table_has_medians_and_their_ratios():
    calls = [("keras_hub", 9.0), ("adapt", 8.0), ("keras_hub", 15.0), ("adapt", 10.0)]
    figures = [figure("generate", 8000, kind, first_call=x) for kind, x in calls]
    figures.append(figure("export", None, "adapt", graph_megabytes=1.5))
    *head, _, first, last = hands.report(figures).splitlines()
    assert head == ["llama", "a machine", ""]
    assert first.split() == ["generate", "8,000", "first", "call", "12.000", "9.000", "0.75"]
    assert last.split() == ["export", "-", "graph", "megabytes", "-", "1.500", "-"]


@pytest.mark.weekly
def test_every_wait_is_measured_in_processes(tmp_path):
    folder = write_llama(tmp_path / "llama", max_position_embeddings=256)
    sizes = {"prompt_lengths": 8, "fit_lengths": 12}
    args = parse(hands, "--tasks", "generate", "fit_lora", model=folder, **sizes)
    calls = ["first_call", "second_call", "other_prompt", "other_length", "same_again", "token"]
    cells = 2 * [["load", *calls]] + 2 * [["load", "first_step", "step"]]
    assert [[*figure["waits"]] for figure in hands.main(args)["figures"]] == cells
    # Beside the export, those of the process with TensorFlow alone.
    waits = hands.export(rt_keras.adapt(folder, [LocalHeads(4, 8)]))
    assert {*waits} > {"load_export", "first_answer"} and 0 < waits["graph_megabytes"] < 20
