"""A tiny model, exported once for all tests, and requests to it."""

import functools
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from rt_keras import data
from rt_keras.layers import LocalHeads, RoutingHeads
from rt_keras.models import (
    RoutingTransformerBackbone,
    RoutingTransformerCausalLM,
    RoutingTransformerCausalLMPreprocessor,
)
from rt_keras.serving import export_saved_model

MAX_LENGTH = 128
DEFAULTS = {"max_new_tokens": 12, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 0}
TYPES = {
    "rows": tf.int32,
    "ids": tf.int32,
    "texts": tf.string,
    "prompts": tf.string,
    "max_new_tokens": tf.int32,
    "temperature": tf.float32,
    "top_p": tf.float32,
    "top_k": tf.int32,
    "seed": tf.int64,
}
# Invalid requests, and the input that the error must name.
BAD_REQUESTS = {
    "unknown id": ("score", {"ids": [[5, 258]]}, "ids"),
    "negative id": ("score", {"ids": [[-1]]}, "ids"),
    "ids too long": ("score", {"ids": [[5] * (MAX_LENGTH + 1)]}, "ids"),
    "ids of rank 1": ("score", {"ids": [5, 6]}, "ids"),
    "text too long": ("score_text", {"texts": ["short", "a" * MAX_LENGTH]}, "texts"),
    "texts of rank 0": ("score_text", {"texts": "a"}, "texts"),
    "texts of rank 2": ("score_text", {"texts": [["a"]]}, "texts"),
    "prompt too long": ("generate", {"prompts": ["a" * MAX_LENGTH]}, "prompts"),
    "no room": ("generate", {"prompts": ["a" * 120]}, "max_new_tokens"),
    "far too much": ("generate", {"prompts": ["a"], "max_new_tokens": 2**31 - 1}, "max_new_tokens"),
    "no new tokens": ("generate", {"prompts": ["a"], "max_new_tokens": 0}, "max_new_tokens"),
    "temperature 0": ("generate", {"prompts": ["a"], "temperature": 0.0}, "temperature"),
    "temperature below 0": ("generate", {"prompts": ["a"], "temperature": -1.0}, "temperature"),
    "one of two": ("generate", {"prompts": ["a", "b"], "temperature": [1.0, 0.0]}, "temperature"),
    "three for two": ("generate", {"prompts": ["a", "b"], "temperature": [1.0] * 3}, "temperature"),
    "rank 2": ("generate", {"prompts": ["a"], "temperature": [[1.0]]}, "temperature"),
    "top_p 0": ("generate", {"prompts": ["a"], "top_p": 0.0}, "top_p"),
    "top_p above 1": ("generate", {"prompts": ["a"], "top_p": 1.01}, "top_p"),
    "no rows": ("new_state", {"rows": 0}, "rows"),
    "top_k below 0": ("generate", {"prompts": ["a"], "top_k": -1}, "top_k"),
}


def make_model(tokenizer=None, **changes):
    """Returns a language model whose random weights are as large as those of a trained one."""
    keras.utils.set_random_seed(0)
    tokenizer = tokenizer or data.ByteTokenizer()
    settings = {
        "vocabulary_size": tokenizer.vocabulary_size(),
        "num_layers": 1,
        "hidden_dim": 16,
        "intermediate_dim": 16,
        "head_groups": [LocalHeads(1, 8, max_relative_distance=7), RoutingHeads(1, 2, 8)],
    }
    backbone = RoutingTransformerBackbone(**{**settings, **changes})
    rng = np.random.default_rng(0)
    for weight in backbone.trainable_variables:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    preprocessor = RoutingTransformerCausalLMPreprocessor(tokenizer, sequence_length=32)
    return RoutingTransformerCausalLM(backbone, preprocessor)


@functools.cache
def model():
    """Returns the served model, without XLA, as Keras compiles it on a CPU."""
    model = make_model()
    model.compile(sampler="random", jit_compile=False)
    return model


@functools.cache
def _folder():
    return tempfile.TemporaryDirectory()


@functools.cache
def exported():
    """Exports the model and returns the folder of its only version."""
    return export_saved_model(model(), Path(_folder().name) / "rt_keras", max_length=MAX_LENGTH)


@functools.cache
def loaded():
    return tf.saved_model.load(str(exported()))


def tensors(signature, inputs):
    """Converts inputs to tensors; missing parameters of generation are DEFAULTS."""
    if signature.startswith("generate"):
        inputs = {**DEFAULTS, **inputs}
    return {name: tf.constant(value, TYPES.get(name)) for name, value in inputs.items()}


def ask(signature, **inputs):
    """Returns the outputs of the loaded SavedModel as NumPy arrays."""
    outputs = loaded().signatures[signature](**tensors(signature, inputs))
    return {name: value.numpy() for name, value in outputs.items()}


def texts(**inputs):
    """Returns the texts that the loaded SavedModel generates, as a list of strings."""
    return [text.decode() for text in ask("generate", **inputs)["texts"]]
