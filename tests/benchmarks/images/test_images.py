import numpy as np
import pytest

from rt_keras.benchmarks import images
from rt_keras.benchmarks.images.training import train
from tests.benchmarks.checks import parse, rows, train_here
from tests.data.test_idx_images import write_folder, write_idx


@pytest.mark.weekly
def test_a_model_learns_and_has_a_row_beside_a_codec(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    train_here(monkeypatch, images, train)
    write_folder(tmp_path)
    for name in ("train", "t10k"):
        write_idx(tmp_path / f"{name}-images-idx3-ubyte", np.full([20, 4, 5], 7))
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte", np.zeros([20]))
    small = {"steps": 20, "layers": 1, "width": 16, "keys": 10, "batch": 2, "test_images": 3}
    small |= {"directory": tmp_path, "learning_rate": 1e-2, "plot": tmp_path / "a.svg"}
    args = parse(images, kinds=["png", "nearest"], **small)
    png, nearest = images.main(args)["figures"]
    assert nearest["test_bits"] < nearest["bits"][0] - 1 and nearest["steps"][-1] == 20
    assert png["test_bits"] > 8 and ["png", f"{png['test_bits']:.3f}", *"----"] in rows(capsys)
    # Another seed's model is worse by 1.
    other = {**nearest, "test_bits": nearest["test_bits"] + 1}
    row = images.report([nearest, other]).splitlines()[-1].split()
    mean, spread = nearest["test_bits"] + 0.5, 0.5**0.5
    assert row[:3] == ["nearest", f"{mean:.3f}", f"{spread:.3f}"] and row[3] != "-"
