import json

import pytest

from tests.cli.checks import assert_one_line


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


def test_several_prompts_are_one_batch(run, tiny_run, tmp_path):
    figures = tmp_path / "figures.json"
    two = ["generate", "--model", tiny_run, "--prompt", "café ", "ab", "--sampler", "greedy"]
    assert run(*two, "--max-length", 12, "--json", figures)[0] == 0
    texts = json.loads(figures.read_text())["texts"]
    assert [text[:2] for text in texts] == ["ca", "ab"]


@pytest.mark.parametrize(
    "arguments, parts",
    [
        ([], ["--prompt is missing"]),
        (["--prompt", "a", "--max-length", 0], ["--max-length"]),
        (["--prompt", "a", "--temperature", 0], ["--temperature"]),
        (["--prompt", "a", "--top-p", 0.5], ["--top-p is 0.5", "sampler random has none"]),
        (
            ["--prompt", "a", "--sampler", "top_p", "--top-p", 2],
            ["--top-p is 2.0", "at most 1"],
        ),
        (["--prompt", "a", "b", "--stream"], ["--stream is for one --prompt"]),
        (
            ["--prompt", "a", "--sampler", "beam", "--stream"],
            ["BeamSampler", "cannot be streamed"],
        ),
    ],
)
def test_bad_arguments_give_one_line(run, tiny_run, arguments, parts):
    status, _, error = run("generate", "--model", tiny_run, *arguments)
    assert_one_line(status, error, *parts)
