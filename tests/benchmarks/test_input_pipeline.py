import tempfile

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


def test_packing_is_done_anew_in_each_run(monkeypatch):
    monkeypatch.setattr(input_pipeline, "FILES", 3)
    monkeypatch.setattr(input_pipeline, "BYTES", 100)
    run = input_pipeline.prepare_packing()
    assert run() == run() == 303


def test_a_start_on_large_files_takes_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = input_pipeline.prepare_start(gigabytes=1, step=10**6, length=32, batch=2)
    files = [path.stat() for path in tmp_path.rglob("*.npy")]
    assert 0.8e9 < sum(file.st_size for file in files) < 1.1e9
    assert sum(512 * file.st_blocks for file in files) < 1e6
    assert run() == run() == 64
