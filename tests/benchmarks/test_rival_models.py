import pytest

pytest.importorskip("routing_transformer", reason="routing-transformer is not installed")

from rt_keras.benchmarks import models, rival_models

SIZES = {"length": 32, "window": 8, "layers": 2, "width": 16}


def test_the_shape_is_that_of_our_models():
    assert (rival_models.VOCABULARY, rival_models.HEADS) == (models.VOCABULARY, models.HEADS)
    theirs, _ = rival_models.build(**SIZES)
    ours = models.build("balanced_shared", **SIZES)

    def products(shapes):
        return sorted(tuple(sorted(shape)) for shape in shapes if len(shape) == 2)

    found = [tuple(weight.shape) for weight in theirs.parameters()]
    feed_forward = [(16, 128), (16, 64)] * 2
    for shapes in (found, [tuple(weight.shape) for weight in ours.trainable_weights]):
        assert [s for s in products(shapes) if s in feed_forward] == sorted(
            tuple(sorted(shape)) for shape in feed_forward
        )
        assert products(shapes).count((16, 256)) == 2


def test_steps_train_the_model():
    step = rival_models.prepare_step("routing_transformer", batch=2, **SIZES)
    losses = [step() for _ in range(4)]
    assert losses[-1] < losses[0]


def test_generation_gives_the_new_tokens():
    tokens = rival_models.prepare_generation("routing_transformer", tokens=3, **SIZES)()
    assert tokens.shape == (1, 3)
