import json

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.models.adapted import tensor_files
from rt_keras.models.adapted.tensor_files import TensorFiles, as_tensor


def write(path, header, data=b""):
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


@pytest.mark.parametrize("slice_bytes", [2**25, 16])
def test_tensors_are_what_the_file_has(tmp_path, monkeypatch, slice_bytes):
    from safetensors.numpy import save_file

    monkeypatch.setattr(tensor_files, "SLICE", slice_bytes)
    arrays = {
        "matrix": np.random.default_rng(0).normal(size=[7, 5]).astype("float32"),
        "scalar": np.array(3, "float32"),
        "empty": np.zeros([0, 3], "float32"),
        "ints": np.arange(6).reshape(2, 3),
    }
    save_file(arrays, tmp_path / "a.safetensors", metadata={"format": "np"})
    files = TensorFiles([tmp_path / "a.safetensors"])
    for name, array in arrays.items():
        np.testing.assert_array_equal(files.read(name), array)
        for dtype in ("float32", "float16", "bfloat16", "float64", "int32"):
            expected = array.astype(tf.as_dtype(dtype).as_numpy_dtype)
            found = as_tensor(files.read(name), dtype)
            assert found.dtype == dtype
            np.testing.assert_array_equal(found.numpy(), expected)
            turned = as_tensor(np.transpose(files.read(name)), dtype)
            np.testing.assert_array_equal(turned.numpy(), expected.T)


def test_variables_that_share_a_tensor_do_not_change_each_other():
    tensor = as_tensor(np.ones([4]), "float32")
    one, other = tf.Variable(tensor), tf.Variable(tensor)
    one.assign_add([1.0] * 4)
    np.testing.assert_array_equal([one, other, tensor], [[2.0] * 4, [1.0] * 4, [1.0] * 4])


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"x": {"dtype": "F32", "shape": [2]}}, "or no safetensors file"),
        ({"x": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, "one of the types F64"),
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, "is truncated"),
    ],
)
def test_damaged_files_are_refused(tmp_path, header, message):
    path = write(tmp_path / "a.safetensors", header, b"1234")
    with pytest.raises(ValueError, match=message):
        TensorFiles([path])


def test_missing_tensors_are_named(tmp_path):
    path = write(tmp_path / "a.safetensors", {})
    with pytest.raises(ValueError, match="a.safetensors: there is no tensor y, which the mod"):
        TensorFiles([path]).read("y")
