import pytest

from tests.conftest import made_once
from tests.serving.served import Served, export


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """The SavedModel of `tests.serving.served.model`, exported once for all workers."""
    return Served(made_once(tmp_path_factory, "served", export) / "rt_keras" / "1")
