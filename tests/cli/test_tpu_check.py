import pytest

from rt_keras import cli
from rt_keras.tpu import check


@pytest.mark.parametrize(
    "options, message",
    [
        (["--cores", "3"], "--cores must be 1, or 4 for all of v5e:2x2. Received: 3"),
        (["--topology", "v9:2x2"], "--topology must name a chip among v4, v5e"),
        (["--batch", "2"], "pip install no-such-compiler==1.2"),
    ],
)
def test_wrong_options_are_told_in_one_line(options, message, capsys, monkeypatch):
    monkeypatch.setattr(check, "COMPILER", {"no-such-compiler": "1.2"} if "2" in options else {})
    assert cli.main(["tpu-check", "--config", "quickstart", *options]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
