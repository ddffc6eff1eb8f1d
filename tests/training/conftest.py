import pytest

from rt_keras.training import config as config_lib
from rt_keras.training import run


@pytest.fixture
def train(tiny_settings, tmp_path):
    """Trains a tiny model in `tmp_path / "run"`, or in another folder."""

    def train(output=tmp_path / "run", settings=None, **options):
        config = config_lib.make_config({**tiny_settings, **(settings or {})})
        return run.train(config, output, verbose=0, **options)

    return train
