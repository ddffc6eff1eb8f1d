"""Tiny models and checks that every model must pass."""

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.callbacks import CentroidEMA
from rt_keras.layers import LocalHeads, RoutingHeads
from rt_keras.layers.centroids import centroids_inside
from rt_keras.models import RoutingTransformerBackbone, RoutingTransformerCausalLM
from tests.layers.checks import largest_difference

VOCABULARY = 20
# Options of blocks that are not their defaults.
BLOCKS = {"activation": "relu", "normalize_first": False, "dropout": 0.1, "dtype": "mixed_bfloat16"}
SAMPLERS = {
    "greedy": keras_hub.samplers.GreedySampler,
    "top p": lambda: keras_hub.samplers.TopPSampler(0.9, seed=1),
    "beam": lambda: keras_hub.samplers.BeamSampler(num_beams=3),
    "contrastive": lambda: keras_hub.samplers.ContrastiveSampler(k=3, alpha=0.3),
}


def groups(max_relative_distance=3, **routing):
    """One local head and one routing head."""
    return [
        LocalHeads(1, 4, max_relative_distance=max_relative_distance),
        RoutingHeads(1, 3, 4, max_relative_distance=max_relative_distance, **routing),
    ]


def make_backbone(cls=RoutingTransformerBackbone, **changes):
    """Two blocks; weights and load biases are as random as those of a trained model."""
    keras.utils.set_random_seed(0)
    settings = {
        "vocabulary_size": VOCABULARY,
        "num_layers": 2,
        "hidden_dim": 8,
        "intermediate_dim": 16,
        "head_groups": groups(),
    }
    return as_if_trained(cls(**{**settings, **changes}))


def make_lm(preprocessor=None, loss_chunk_size=None, **changes):
    """A language model with the backbone of `make_backbone`."""
    return RoutingTransformerCausalLM(make_backbone(**changes), preprocessor, loss_chunk_size)


def as_if_trained(model, seed=0):
    """Adds noise to each weight, and to the load biases."""
    rng = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    for centroids in centroids_inside(model):
        centroids.load_bias.assign(0.3 * rng.normal(size=centroids.load_bias.shape))
    return model


def random_tokens(batch, length, seed=0):
    return np.random.default_rng(seed).integers(1, VOCABULARY, [batch, length], dtype="int32")


def inputs(tokens, lengths=None):
    """The inputs of models; rows of other `lengths` are padded at the right."""
    tokens = np.asarray(tokens, "int32")
    lengths = np.full(len(tokens), tokens.shape[1]) if lengths is None else np.asarray(lengths)
    mask = np.arange(tokens.shape[1]) < lengths[:, None]
    return {"token_ids": tokens * mask, "padding_mask": mask.astype("int32")}


def same(found, expected, tolerance=0.0):
    """Asserts that structures of arrays or texts are equal, numbers up to a tolerance."""
    for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        if isinstance(b, str):
            assert a == b
        else:
            assert np.shape(a) == np.shape(b)
            assert np.size(b) == 0 or largest_difference(a, b) <= tolerance


def check_backbone(backbone, x, tmp_path, **given):
    """A backbone has the given arguments; its config and its files make an equal one."""
    for output in tf.nest.flatten(backbone(x)):
        assert np.all(np.isfinite(np.asarray(output, "float64")))
        assert output.dtype == backbone.compute_dtype and output.shape[-1] == backbone.hidden_dim
    assert {weight.dtype for weight in backbone.trainable_weights} == {backbone.variable_dtype}
    config = keras.saving.serialize_keras_object(backbone)
    for name, value in given.items():
        if name != "dtype" and not name.endswith("head_groups"):
            assert config["config"][name] in (value, list(np.ravel(value))), name
    copy = check_files(backbone, lambda model: model(x), tmp_path)
    assert keras.saving.serialize_keras_object(copy)["config"] == config["config"]


def check_files(model, use, tmp_path, tolerance=0.0, cls=None):
    """What `use` finds is the same for the models of a file and of a preset, which it returns.

    The preset is loaded by `cls`, by default that of the model.
    """
    expected = use(model)
    model.save(tmp_path / "model.keras")
    model.save_to_preset(str(tmp_path / "preset"))
    # With the policy of the model; a preset alone has float32.
    dtype = getattr(model, "backbone", model).dtype_policy.name
    of_preset = (cls or type(model)).from_preset(str(tmp_path / "preset"), dtype=dtype)
    for copy in (keras.saving.load_model(tmp_path / "model.keras"), of_preset):
        assert type(copy) is type(model)
        same(use(copy), expected, tolerance)
    return of_preset


def check_fit(model, *data, epochs=2, **options):
    """Training lowers the loss, and moves every weight."""
    before = [np.array(weight) for weight in model.trainable_variables]
    callbacks = [CentroidEMA()] if centroids_inside(model) else []
    fit = {"epochs": epochs, "shuffle": False, "verbose": 0, "callbacks": callbacks}
    history = model.fit(*data, **fit, **options).history
    assert history["loss"][-1] < history["loss"][0]
    pairs = zip(model.trainable_variables, before, strict=True)
    assert [x.path for x, a in pairs if np.array_equal(x, a)] == []
    return history


def greedy(model, prompt, length):
    """The greedy continuation of a prompt, from the logits of exactly the preceding tokens."""
    tokens = [int(token) for token in prompt]
    while len(tokens) < length:
        tokens.append(int(np.argmax(model(inputs([tokens]))[0, -1])))
    return tokens
