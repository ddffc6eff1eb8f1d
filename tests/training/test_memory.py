import pytest

from rt_keras.training import memory
from rt_keras.training.config import make_config
from rt_keras.training.run import train


def test_what_cannot_fit_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: 8e9)
    message = (
        r"data.batch_size is 100,000,000,000, data.sequence_length 2,048: training needs at "
        r"least [\d,]+ GB of memory and this machine has 8 GB. "
        r"At this size, a data.batch_size of at most \d\d can fit"
    )
    with pytest.raises(ValueError, match=message):
        train(make_config({"data.batch_size": 10**11}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
