import importlib.util

import pytest

from rt_keras.benchmarks import rivals

SIZES = {"length": 32, "heads": 2, "depth": 4, "window": 8}
torch_is_missing = importlib.util.find_spec("torch") is None
needs_torch = pytest.mark.skipif(torch_is_missing, reason="torch is not installed")


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)


def test_what_is_not_installed_is_left_out_with_a_line_that_helps(nothing_installed, capsys):
    assert rivals.choose(None, rivals.ATTENTION) == {}
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(rivals.ATTENTION)
    assert said[1] == (
        "not installed: kmeans_attention needs torch and routing-transformer: "
        "pip install torch routing-transformer"
    )


def test_what_is_asked_for_must_be_installed(nothing_installed):
    with pytest.raises(ValueError, match="--rivals: torch_full needs torch: pip install torch"):
        rivals.choose(["torch_full"], rivals.ATTENTION)


def test_nobody_can_be_asked_for(capsys):
    assert rivals.choose([], rivals.ATTENTION) == {}
    assert capsys.readouterr().err == ""


def test_a_rival_is_known_by_the_package_it_is_from():
    found = {name: rivals.package(imports) for name, imports in rivals.ATTENTION.items()}
    assert found["torch_full"] == "torch"
    assert found["kmeans_attention"] == "routing-transformer"
    assert found["fast_transformers"] == "pytorch-fast-transformers"


@needs_torch
def test_versions_are_those_that_are_installed():
    import torch

    assert rivals.versions({"torch_full": ("torch",)}) == {"torch": torch.__version__}


@needs_torch
def test_full_attention_is_causal_and_has_all_gradients():
    import torch

    output, *gradients = rivals.prepare("torch_full", "forward_backward", **SIZES)()
    assert [x.shape for x in gradients] == [(1, 2, 32, 4)] * 3
    torch.manual_seed(0)
    query, key, value, upstream = (torch.randn(1, 2, 32, 4).requires_grad_(i < 3) for i in range(4))
    logits = query @ key.mT / 4**0.5
    logits = logits.masked_fill(torch.ones(32, 32).triu(1).bool(), -torch.inf)
    expected = logits.softmax(-1) @ value
    torch.testing.assert_close(output, expected)
    expected.backward(upstream)
    for found, tensor in zip(gradients, (query, key, value)):
        torch.testing.assert_close(found, tensor.grad)


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", rivals.ATTENTION)
def test_every_rival_runs_forward_without_gradients_and_with_them(kind):
    missing = [name for name in rivals.ATTENTION[kind] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    # fast_transformers has 100 clusters for any number of positions.
    sizes = SIZES | {"length": 256}
    run = rivals.prepare(kind, "forward", **sizes)
    (output,) = run()
    assert output.shape == (1, 2, 256, 4) and not output.requires_grad
    run = rivals.prepare(kind, "forward_backward", **sizes)
    for _ in range(2):
        output, *gradients = run()
    assert len(gradients) == (2 if kind.endswith("_shared") else 3)
    assert all(x.shape == (1, 2, 256, 4) and x.abs().sum() > 0 for x in gradients)


def test_clusters_move_only_in_training():
    pytest.importorskip("routing_transformer", reason="routing-transformer is not installed")
    for direction, moves in (("forward", False), ("forward_backward", True)):
        run = rivals.prepare("kmeans_attention", direction, **SIZES)
        run()
        layer = next(
            cell.cell_contents.__self__
            for cell in run.__closure__
            if hasattr(cell.cell_contents, "__self__")
        )
        before = layer.means.clone()
        run()
        assert bool((layer.means != before).any()) == moves
