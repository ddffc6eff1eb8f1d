import sys
from importlib import metadata

import pytest

from rt_keras import installation
from rt_keras.installation import Package
from tests.installed import record


def test_what_is_needed_and_what_is_installed(tmp_path, monkeypatch):
    requires = [
        "rich<16,>=13",
        'no-such-package>=2; python_version < "3.0"',
        'rich>=10; extra == "plot"',
        'no-such-package; python_version >= "3.11" and extra == "plot"',
    ]
    record(tmp_path, requires, python="<3.99,>=3.11")
    monkeypatch.syspath_prepend(tmp_path)
    version = metadata.version("rich")
    assert installation.needed_packages() == {
        "": [Package("rich", ">=13,<16", version)],
        "plot": [Package("rich", ">=10", version), Package("no-such-package", "", None)],
    }
    assert installation.needed_python() == ">=3.11,<3.99"


def test_versions_before_a_release_may_do():
    assert Package("keras", ">=3.15,<3.16", "3.15.2.dev1").problem is None
    assert Package("keras", ">=3.15,<3.16", "3.16.0").problem is not None
    assert Package("keras", "", "1").problem is None


def test_rt_keras_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="rt_keras is not installed.*pip install"):
        installation.needed_packages()
