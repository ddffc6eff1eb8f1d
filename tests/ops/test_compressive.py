import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import compressive_attention
from rt_keras.ops.compressive import COMPRESSIONS, Memory, reconstruction_loss
from tests.ops import checks, reference

SIZES = {"block_size": 6, "compressed_length": 4, "compression_rate": 3}
LENGTH = 39


def make_inputs(far=None, **options):
    inputs = checks.arrays(LENGTH, far=far, **options)
    rng = np.random.default_rng(7)
    if far is not None:
        inputs["memory_embeddings"] = rng.normal(size=[2, SIZES["compressed_length"], 6])
    return inputs


def make_kernels():
    rng = np.random.default_rng(9)
    return {"key": rng.normal(size=[2, 3, 6, 6]), "value": rng.normal(size=[2, 3, 5, 5])}


def expected_of(inputs, compression, look_back, kernels=None, mask=None):
    return reference.compressive(
        **inputs,
        **SIZES,
        look_back=look_back,
        compression=compression,
        kernels=kernels,
        key_mask=mask,
    )


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("far, look_back", [(None, 1), (4, 2)])
def test_equation(compression, far, look_back):
    inputs = make_inputs(far)
    kernels = make_kernels() if compression == "conv" else None
    found = compressive_attention(
        **checks.tensors(inputs),
        **SIZES,
        look_back=look_back,
        compression=compression,
        kernels=kernels,
    )
    expected = expected_of(inputs, compression, look_back, kernels)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("length", [1, 6, 7, 19])
def test_sequences_shorter_than_the_window(length, compression):
    inputs = checks.arrays(length)
    kernels = make_kernels() if compression == "conv" else None
    options = {"look_back": 3, "compression": compression, "kernels": kernels}
    found = compressive_attention(**checks.tensors(inputs), **SIZES, **options)
    expected = expected_of(inputs, compression, 3, kernels)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("compression", ["mean", "most_used"])
def test_padding(compression):
    inputs, mask = make_inputs(), checks.mask("scattered", LENGTH)
    found = compressive_attention(
        **checks.tensors(inputs), **SIZES, compression=compression, key_mask=tf.constant(mask)
    )
    expected = expected_of(inputs, compression, 1, mask=mask)
    real = np.broadcast_to(mask[:, None], found.shape[:3])
    np.testing.assert_allclose(found.numpy()[real], expected[real], rtol=0, atol=1e-12)


def test_kernels_learn_to_reconstruct_and_nothing_else_does():
    inputs = checks.tensors(make_inputs(), tf.float32)
    kernels = {name: tf.constant(x, tf.float32) for name, x in make_kernels().items()}
    memory = Memory(**SIZES, compression="conv", kernels=kernels)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([inputs, kernels])
        loss = reconstruction_loss(**inputs, key_mask=None, memory=memory)
        output = compressive_attention(**inputs, **SIZES, compression="conv", kernels=kernels)
    assert tape.gradient(loss, inputs) == dict.fromkeys(inputs)
    assert tape.gradient(output, kernels) == dict.fromkeys(kernels)
    for gradient in tape.gradient(loss, kernels).values():
        assert np.any(gradient)
    query, key, value = (inputs[name].numpy() for name in ("query", "key", "value"))
    errors = []
    for row, head, block in np.ndindex(2, 2, LENGTH // 6 - 1):
        places = slice(6 * block, 6 * block + 6)
        k, v = key[row, head, places], value[row, head, places]
        runs = [
            np.einsum("srd,rde->se", x.reshape(2, 3, -1), kernels[name][head])
            for x, name in ((k, "key"), (v, "value"))
        ]
        for q in query[row, head, 6 * block + 6 : 6 * block + 12]:
            exact, lossy = (reference.softmax(q @ a.T / np.sqrt(6)) @ b for a, b in ((k, v), runs))
            errors.append(np.mean((exact - lossy) ** 2))
    np.testing.assert_allclose(loss, np.mean(errors), rtol=1e-4)


@pytest.mark.end_to_end
@pytest.mark.parametrize("compression", ["conv", "most_used"])
@pytest.mark.parametrize("dtype, atol", [("float32", 1e-5), ("bfloat16", 1e-1)])
def test_compiled_by_xla(compression, dtype, atol):
    inputs = checks.tensors(make_inputs(), tf.as_dtype(dtype))
    kernels = None
    if compression == "conv":
        kernels = {name: tf.cast(x, dtype) / 4 for name, x in make_kernels().items()}

    def attend(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch(query)
            output = compressive_attention(
                query, key, value, **SIZES, compression=compression, kernels=kernels
            )
        return output, tape.gradient(output, query)

    arguments = [inputs[name] for name in ("query", "key", "value")]
    found = tf.function(attend, jit_compile=True)(*arguments)
    for a, b in zip(found, attend(*arguments)):
        assert a.dtype == dtype
        np.testing.assert_allclose(tf.cast(a, "float32"), tf.cast(b, "float32"), rtol=0, atol=atol)
