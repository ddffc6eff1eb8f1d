import importlib
import sys

import pytest

from rt_keras import extras
from rt_keras.analysis import attention_map

OF_EXTRAS = (
    *("official", "tensorflow_datasets", "array_record"),
    *("tensorflow_serving", "matplotlib", "tf_keras"),
)


def test_the_error_names_the_extra_and_the_package():
    message = r"^Drawing needs the extra `plot`: pip install 'rt_keras\[plot\]' \(No module named"
    with (
        pytest.raises(ModuleNotFoundError, match=message) as caught,
        extras.needed("plot", "Drawing"),
    ):
        import no_such_package  # noqa: F401
    assert caught.value.name == "no_such_package"


def test_data_sets_and_drawing_name_their_extras(monkeypatch, tmp_path):
    loaded = [name for name in sys.modules if name.partition(".")[0] in OF_EXTRAS]
    for name in (*OF_EXTRAS, *loaded):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("tfds_sets", "text_folder", "pairs_folder"):
        monkeypatch.delitem(sys.modules, f"rt_keras.data.{name}", raising=False)
        with pytest.raises(ModuleNotFoundError, match="Reading data sets needs the extra `train`"):
            importlib.import_module(f"rt_keras.data.{name}")
    with pytest.raises(ModuleNotFoundError, match="Drawing needs the extra `plot`"):
        maps = {"tokens": ["a"], "weights": [[[[1.0]]]], "heads": [["FullHeads"]]}
        attention_map.draw(maps, tmp_path / "map.png")
