import os
import sysconfig
from pathlib import Path

from rt_keras.data.python_source import PythonSource
from rt_keras.data.text_folder import split_of

LIBRARY = Path(sysconfig.get_path("stdlib"))


def test_files(tmp_path):
    files = PythonSource(data_dir=tmp_path).files
    names = [name for names in files.values() for name in names]
    assert len(names) == len(set(names)) > 500
    assert {"os.py", "asyncio/tasks.py"} <= set(names)
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    assert not [name for name in names if left_out & set(name.split("/")[:-1])]
    assert all(split_of(name) == split for split, names in files.items() for name in names)
    size = {s: sum(os.path.getsize(LIBRARY / name) for name in files[s]) for s in files}
    assert size["train"] > 8e6
    assert min(size["validation"], size["test"]) > 3e5
