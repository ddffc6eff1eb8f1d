import json
import os

import pytest


@pytest.mark.slow
def test_texts_are_continued_alike_at_once_streamed_and_in_a_batch(run, tiny_run, tmp_path):
    figures = tmp_path / "figures.json"
    generate = ["generate", "--model", tiny_run, "--max-length", 20, "--json", figures]
    # A prompt need not be UTF-8.
    prompt = os.fsdecode(b"caf\xe9 ")
    status, output, _ = run(*generate, "--prompt", prompt)
    text = json.loads(figures.read_text())["text"]
    assert status == 0 and text in output
    status, output, _ = run(*generate, "--prompt", prompt, "--stream")
    assert json.loads(figures.read_text())["text"] == text and f"{text}\n" in output
    greedy = [*generate, "--sampler", "greedy", "--prompt", "the"]
    assert run(*greedy)[0] == 0
    alone = json.loads(figures.read_text())["text"]
    assert run(*greedy, "ab")[0] == 0
    texts = json.loads(figures.read_text())["texts"]
    assert texts[0] == alone and texts[1].startswith("ab")


@pytest.mark.slow
def test_a_stream_comes_in_pieces_once_all_is_compiled(run, tiny_run, monkeypatch):
    events = []

    def stream(*arguments):
        for piece in ("a", "b", "c"):
            events.append(f"made {piece}")
            yield piece

    def show(*values, **options):
        events.append(f"printed {values[0]}" if values else "printed")

    monkeypatch.setattr("rt_keras.models.streaming.stream", stream)
    monkeypatch.setattr("builtins.print", show)
    run("generate", "--model", tiny_run, "--prompt", "a", "--stream")
    shown = events[events.index("made a") :]
    assert shown == ["made a", "made b", "printed a", "printed b", "made c", "printed c", "printed"]
