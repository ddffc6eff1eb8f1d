import json
import os

import pytest

from tests.cli.checks import assert_one_line


@pytest.mark.end_to_end
def test_a_text_is_continued_alike_at_once_and_streamed(run, tiny_run, tmp_path):
    figures = tmp_path / "figures.json"
    generate = ["generate", "--model", tiny_run, "--prompt", "café ", "--max-length", 20]
    texts = []
    for _ in range(2):
        status, output, _ = run(*generate, "--json", figures)
        texts.append(json.loads(figures.read_text())["text"])
        assert status == 0 and texts[-1] in output
    assert texts[0] == texts[1] and texts[0].startswith("café ")
    assert run(*generate, "--stream")[1].endswith(f"{texts[0]}\n")


@pytest.mark.end_to_end
def test_several_prompts_are_one_batch(run, tiny_run, tmp_path):
    figures = tmp_path / "figures.json"
    two = ["generate", "--model", tiny_run, "--prompt", "café ", "ab", "--sampler", "greedy"]
    assert run(*two, "--max-length", 12, "--json", figures)[0] == 0
    texts = json.loads(figures.read_text())["texts"]
    assert [text[:2] for text in texts] == ["ca", "ab"]


@pytest.mark.end_to_end
def test_a_prompt_need_not_be_utf_8(run, tiny_run, tmp_path):
    prompt = os.fsdecode(b"caf\xe9 ")
    arguments = ["--prompt", prompt, "--max-length", 12, "--json", tmp_path / "figures.json"]
    assert run("generate", "--model", tiny_run, *arguments)[0] == 0


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


@pytest.mark.parametrize(
    "arguments, parts",
    [
        ([], ["--prompt is missing"]),
        (["--prompt", "a", "--max-length", 0], ["--max-length must be at least 1. Received: 0"]),
        (["--prompt", "a", "--temperature", 0], ["temperature", "0.0"]),
        (["--prompt", "a", "--temperature", "inf"], ["temperature", "finite", "inf"]),
        (["--prompt", "a", "--temperature", 1e-300], ["temperature", "at least", "1e-300"]),
        (["--prompt", "a", "--temperature", "nan", "--stream"], ["temperature", "finite", "nan"]),
        (["--prompt", "a", "--top-p", 0.5], ["--top-p does not apply to sampler random"]),
        (
            ["--prompt", "a", "--sampler", "top_p", "--top-p", 2],
            ["p of TopPSampler must be above 0 and at most 1. Received: p=2.0"],
        ),
        (
            ["--prompt", "a", "--sampler", "top_p", "--top-p", 0],
            ["p of TopPSampler must be above 0 and at most 1. Received: p=0.0"],
        ),
        (
            ["--prompt", "a", "--sampler", "top_p", "--top-p", "nan"],
            ["p of TopPSampler must be above 0 and at most 1. Received: p=nan"],
        ),
        (
            ["--prompt", "a", "--sampler", "top_p", "--top-k", 0],
            ["k of TopPSampler must be from 1 to 258, ", "Received: k=0"],
        ),
        (
            ["--prompt", "a", "--sampler", "top_k", "--top-k", 1000000],
            ["k of TopKSampler must be from 1 to 258, ", "Received: k=1000000"],
        ),
        (
            ["--prompt", "a", "--sampler", "beam", "--num-beams", 0],
            ["num_beams of BeamSampler must be at least 1. Received: num_beams=0"],
        ),
        (["--prompt", "a", "--image", "x.png"], ["--image does not apply", ", a text model"]),
        (["--prompt", "a", "--label", 0], ["--label does not apply", ", a text model"]),
        (["--prompt", "a", "--known-rows", 1], ["--known-rows does not apply"]),
        (["--prompt", "a", "b", "--stream"], ["--stream is for one --prompt"]),
        (
            ["--prompt", "a", "--sampler", "beam", "--stream"],
            ["BeamSampler", "one token at a time"],
        ),
    ],
)
def test_bad_arguments_give_one_line(run, tiny_run, arguments, parts):
    status, _, error = run("generate", "--model", tiny_run, *arguments)
    assert_one_line(status, error, *parts)
