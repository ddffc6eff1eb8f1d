import subprocess
import sys

from rt_keras import data


def test_all_names_are_there():
    assert all(callable(getattr(data, name)) for name in data.__all__)
    assert set(data.__all__) <= set(dir(data))


def test_heavy_packages_are_not_imported_before_they_are_used():
    heavy = ["tensorflow", "keras_hub", "tensorflow_text", "tensorflow_datasets"]
    code = f"import sys, rt_keras.data; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
