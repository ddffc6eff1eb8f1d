import pytest

from rt_keras.benchmarks import rivals


def test_what_is_not_installed_is_left_out_with_a_line_that_helps(monkeypatch, capsys):
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)
    assert rivals.choose([], rivals.ATTENTION) == {} and capsys.readouterr().err == ""
    assert rivals.choose(None, rivals.ATTENTION) == {}
    assert capsys.readouterr().err.splitlines()[1] == (
        "not installed: kmeans_attention needs torch and routing-transformer: "
        "pip install torch routing-transformer"
    )
    # Those that are requested must be installed.
    with pytest.raises(ValueError, match="--rivals: torch_full needs torch: pip install torch"):
        rivals.choose(["torch_full"], rivals.ATTENTION)
