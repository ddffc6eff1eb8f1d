import pytest

from rt_keras.benchmarks import input_pipeline


def test_a_run_is_about_one_pass_over_the_files(monkeypatch):
    monkeypatch.setattr(input_pipeline, "FILES", 3)
    monkeypatch.setattr(input_pipeline, "BYTES", 100)
    assert input_pipeline.tokens_of_a_run(length=32, batch=2) == 256
    run = input_pipeline.prepare(length=32, batch=2)
    assert run() == run() == 256


@pytest.mark.parametrize("length, batch", [(8192, 1), (9000, 3)])
def test_a_run_is_whole_batches(length, batch):
    tokens = input_pipeline.tokens_of_a_run(length, batch)
    total = input_pipeline.FILES * input_pipeline.BYTES
    assert tokens % (length * batch) == 0 and total - length * batch < tokens <= total


def test_a_run_of_small_batches_is_not_a_whole_pass():
    assert input_pipeline.tokens_of_a_run(length=32, batch=1) == 32 * input_pipeline.MOST
