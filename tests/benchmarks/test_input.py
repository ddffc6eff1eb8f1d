import tempfile

from rt_keras.benchmarks import input_pipeline


def test_runs_pack_and_read_whole_batches_of_about_one_pass(monkeypatch, tmp_path):
    total = input_pipeline.FILES * input_pipeline.BYTES
    tokens = input_pipeline.tokens_of_a_run(9000, 3)
    assert total - 27000 < tokens <= total and tokens % 27000 == 0
    monkeypatch.setattr(input_pipeline, "FILES", 3)
    monkeypatch.setattr(input_pipeline, "BYTES", 100)
    run, packing = input_pipeline.prepare(length=32, batch=2), input_pipeline.prepare_packing()
    assert run() == run() == 256 and packing() == packing() == 303
    # A start on large files takes no room.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = input_pipeline.prepare_start(gigabytes=1, step=10**6, length=32, batch=2)
    files = [path.stat() for path in tmp_path.rglob("*.npy")]
    assert 0.8e9 < sum(file.st_size for file in files) < 1.1e9
    assert sum(512 * file.st_blocks for file in files) < 1e6 and run() == 64
