from importlib import metadata

from rt_keras import installation
from rt_keras.installation import Package
from tests.installed import record


def test_what_is_needed_and_what_is_installed(tmp_path, monkeypatch):
    record(tmp_path, ["rich<16,>=13", 'no-such-package; extra == "plot"'], python="<3.99,>=3.11")
    monkeypatch.syspath_prepend(tmp_path)
    assert installation.needed_python() == ">=3.11,<3.99"
    assert installation.needed_packages() == {
        "": [Package("rich", ">=13,<16", metadata.version("rich"))],
        "plot": [Package("no-such-package", "", None)],
    }
