"""Mapping from the variables of the authors' checkpoints to the weights of a model."""

import re
import warnings

import numpy as np
import tensorflow as tf

from rt_keras.convert.t2t import heads as t2t
from rt_keras.convert.t2t.token_bias import TokenBias

# Besides the model's variables, a checkpoint may hold counters and the optimizer's slots, whose
# names extend the names of their variables.
SHARD = re.compile(r"symbol_modality_\d+_\d+/(?:shared|input_emb)/weights_(\d+)$")
COUNTERS = re.compile(r"(^|/)(global_step|beta[12]_power|problem_\d+_steps|losses_avg/.*)$")


def assign_variables(task, h, reader, strict=True):
    """Assigns the variables of a checkpoint to a model; each variable is read once.

    Args:
        task: the model, with a backbone from `make_backbone`.
        h: its hyperparameters.
        reader: a `CheckpointReader`.
        strict: bool, whether to raise an error for missing and for unused variables.

    Raises:
        ValueError: if variables are missing, unused or of a wrong shape, with the name and shape of
            each; or if one cannot be read.
    """
    shapes = {
        _strip(name): (name, shape) for name, shape in reader.get_variable_to_shape_map().items()
    }
    missing, wrong, placed = [], [], set()
    embedding = _encoder_embedding(task.backbone, shapes)
    for variable, names, combine in (*placements(task, h), *embedding):
        placed.update(names)
        absent = [name for name in names if name not in shapes]
        if absent:
            missing += [f"{name}, for a weight of shape {tuple(variable.shape)}" for name in absent]
            continue
        values = [_read(reader, shapes[name][0]) for name in names]
        try:
            value = combine(*values)
        except (IndexError, ValueError):
            value = None
        if value is None or value.shape != tuple(variable.shape):
            variables = ", ".join(f"{name} {tuple(shapes[name][1])}" for name in names)
            wrong.append(f"{variables}, for a weight of shape {tuple(variable.shape)}")
            continue
        variable.assign(value)
    left = [f"{name} {tuple(shapes[name][1])}" for name in sorted(set(shapes) - placed)]
    left = [entry for entry in left if not _is_bookkeeping(entry.partition(" (")[0], placed)]
    if wrong or strict and (missing or left):
        raise ValueError(_report(missing, wrong, left))


def _encoder_embedding(backbone, names):
    """Yields the embedding of the encoder's tokens, which Tensor2Tensor stores in shards."""
    if not hasattr(backbone, "encoder_token_embedding"):
        return
    shards = [(SHARD.search(name), name) for name in names]
    shards = sorted((int(match[1]), name) for match, name in shards if match)
    if shards:
        names = tuple(name for _, name in shards)
        yield backbone.encoder_token_embedding.embeddings, names, lambda *x: np.concatenate(x)
    else:
        warnings.warn(
            "the checkpoint has no embedding of the encoder's tokens (symbol_modality_*/shared): "
            "the model only takes embedded inputs, and its token embedding is new",
            stacklevel=4,
        )


def _read(reader, name):
    try:
        return reader.get_tensor(name)
    except (IndexError, ValueError, tf.errors.OpError) as error:
        raise ValueError(f"the checkpoint cannot be read, at {name}: {error}") from None


def _strip(name):
    """Removes everything before the model's scope from a name."""
    return re.sub(r"^(.*/)?(sparse_transformer|sparse_imagetransformer)/body/", "", name)


def _is_bookkeeping(name, placed):
    if COUNTERS.search(name):
        return True
    return any(name.startswith((f"{known}/", f"{known}_slot_")) for known in placed)


def _report(missing, wrong, left):
    parts = (
        ("not found in the checkpoint", missing),
        ("of a shape that does not fit the hyperparameters", wrong),
        ("in the checkpoint but not used", left),
    )
    problems = [
        f"{len(entries)} {what}: {'; '.join(entries)}" for what, entries in parts if entries
    ]
    return ". ".join(["the checkpoint does not fit the model", *problems])


def placements(task, h):
    """Yields each weight of the model, the names of its variables, and how to combine them.

    Args:
        task: the model.
        h: its hyperparameters.

    Yields:
        Triples of a Keras variable, a tuple of names, and a function that maps the arrays of these
        names to the variable's value.
    """
    backbone = task.backbone
    if hasattr(backbone, "image_shape"):
        yield from _image_placements(backbone.embedding)
        yield from _dense(task.output_dense, "final_dense")
    else:
        embedding = backbone.embedding
        yield _as_is(embedding.token_embedding.embeddings, "embeddings/embedding")
        yield from _dense(embedding.embedding_dense, "emb_dense")
        if task.output_projection is not None:
            yield from _dense(task.output_projection, "final_dense_1")
        yield from _dense(task.output_dense, "final_dense_2")
    finals = [getattr(backbone, "encoder_layer_norm", None), backbone.layer_norm]
    for i, norm in enumerate(filter(None, finals)):
        yield from _norm(norm, f"layer_prepostprocess{_suffix(i)}/layer_norm")
    for i, block in enumerate(getattr(backbone, "encoder_blocks", [])):
        yield from _block(block, f"encoder_layer_{i}/self_attention", h)
    for i, block in enumerate(backbone.transformer_blocks):
        yield from _block(block, f"decoder_layer_{i}/self_attention", h)


def _image_placements(embedding):
    yield _as_is(embedding.channel_embedding.embeddings, "rgb_target_emb_channel")
    for axis, places in enumerate(embedding.position_embeddings):
        names = (f"pos_emb_{axis}",)
        yield places.embeddings, names, lambda x: x.reshape(max(x.shape[:-1]), x.shape[-1])
    if embedding.class_embedding is not None:
        yield _as_is(embedding.class_embedding.embeddings, "class_conditional_embedding/embedding")


def _as_is(variable, name):
    return variable, (name,), lambda x: x


def _suffix(number):
    return f"_{number}" if number else ""


def _dense(layer, name):
    yield _as_is(layer.kernel, f"{name}/kernel")
    if layer.use_bias:
        yield _as_is(layer.bias, f"{name}/bias")


def _norm(layer, name):
    yield _as_is(layer.gamma, f"{name}/layer_norm_scale")
    yield _as_is(layer.beta, f"{name}/layer_norm_bias")


def _block(block, scope, h):
    yield from _attention(block.attention, f"{scope}/self_attention")
    norms = [block.attention_norm]
    if block.cross_attention is not None:
        yield from _attention(block.cross_attention, f"{scope}/enc_dec_attention")
        norms.append(block.cross_attention_norm)
    norms.append(block.feed_forward_norm)
    place = "layer_prepostprocess" if block.normalize_first else "layer_postprocess"
    for i, norm in enumerate(norms):
        yield from _norm(norm, f"{scope}/{place}{_suffix(i)}/layer_norm")
    yield from _feed_forward(block.feed_forward, f"{scope}/ffn")


def _feed_forward(layer, scope):
    if not layer.gated:
        yield from _dense(layer.inner_dense, f"{scope}/conv1")
        yield from _dense(layer.output_dense, f"{scope}/conv2")
        return
    names = (f"{scope}/weight1/kernel", f"{scope}/weight2/kernel")
    yield layer.inner_dense.kernel, names, lambda x, gate: np.concatenate([x, gate], axis=1)
    yield _as_is(layer.output_dense.kernel, f"{scope}/weight3/kernel")


def _attention(layer, scope):
    yield _as_is(layer.query_dense.kernel, f"{scope}/q/kernel")
    yield _as_is(layer.value_dense.kernel, f"{scope}/v/kernel")
    yield _as_is(layer.output_dense.kernel, f"{scope}/output_transform/kernel")
    yield _as_is(layer.head_dense.kernel, f"{scope}/attention_nd/dense/kernel")
    # That code has keys for all heads and does not use them in heads that share queries and keys.
    own_keys = [x for group in layer.head_groups for x in [not group.share_qk] * group.num_heads]

    def keys(x):
        return x.reshape(x.shape[0], len(own_keys), -1)[:, own_keys].reshape(x.shape[0], -1)

    if layer.key_dense is not None:
        yield layer.key_dense.kernel, (f"{scope}/k/kernel",), keys
    for group in layer.head_groups:
        yield from _head_group(group, f"{scope}/attention_nd")


def _head_group(group, scope):
    if isinstance(group, t2t.T2TLocalHeads):
        outer, inner = scope, f"{scope}/local_nd"
    else:
        kinds = (
            (t2t.T2TClusterStridedHeads, "cluster_strided_attention"),
            (t2t.T2TStridedHeads, "strided_attention"),
            ((t2t.T2TRoutingHeads, t2t.T2THashedHeads), "cluster_attention"),
        )
        name = next(name for kind, name in kinds if isinstance(group, kind))
        outer, inner = f"{scope}/{name}", f"{scope}/{name}/{name}"
    if isinstance(group, TokenBias) and group.token_bias_weight is not None:
        yield _as_is(group.token_bias_weight, f"{outer}/token_bias_weight")
    if group.positions is not None:
        # That code orders distances from furthest before to furthest after; here it is the reverse.
        tables = {
            "keys": group.positions.relative_embeddings,
            "values": group.positions.relative_values,
        }
        for name, variable in tables.items():
            names = (f"{inner}/relative_positions_{name}/embeddings",)
            yield variable, names, lambda x: x[None, ::-1]
    if isinstance(group, t2t.T2THashedHeads):
        yield _as_is(group.projections, f"{inner}/projection_tensors")
    if group.centroids is not None:
        yield _as_is(group.centroids.centroids, f"{inner}/means")
        yield _as_is(group.centroids.average_counts, f"{inner}/ema_count")
        yield _as_is(group.centroids.average_sums, f"{inner}/ema_means")
