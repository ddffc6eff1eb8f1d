"""Functions of an exported model that continue from a recurrent state.

A server stores nothing between requests. A client that sends back the returned state need not
resend the text so far, such as a chat or the pages of a book. Each tensor of a state is an input
and an output of the same name, `state_00`, `state_01` and so on, with one row per text.
"""

import tensorflow as tf

from rt_keras.models.generation import stop_tokens, written_tokens
from rt_keras.models.stateful import NO_END
from rt_keras.serving import checks, signatures
from rt_keras.serving.served_tokenizer import served_tokenizer


def starting_function(model):
    """Returns the signature `new_state` of a causal language model, its initial state.

    Args:
        model: a `RoutingTransformerCausalLM`, or an adapted one, with a preprocessor and support
            for a recurrent state.

    Returns:
        A `tf.function` that maps `rows`, int32 scalar, to a dictionary of the tensors of a state.

    >>> from rt_keras import data, layers, models
    >>> tokenizer = data.ByteTokenizer()
    >>> backbone = models.RoutingTransformerBackbone(
    ...     vocabulary_size=tokenizer.vocabulary_size(), num_layers=1, hidden_dim=8,
    ...     intermediate_dim=16, head_groups=[layers.LocalHeads(2, block_size=4)])
    >>> preprocessor = models.RoutingTransformerCausalLMPreprocessor(tokenizer)
    >>> model = models.RoutingTransformerCausalLM(backbone, preprocessor)
    >>> state = starting_function(model)(tf.constant(2))
    >>> {x.shape[0] for x in state.values()}
    {2}
    """

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32, name="rows")], autograph=False)
    def new_state(rows):
        rows = checks.checked("rows", rows, 0, [checks.above_zero])
        return _flat(_first_state(model, rows))

    return new_state


def state_scoring_function(model, max_length=signatures.MAX_LENGTH):
    """Returns the signature `score_next`, which scores the next chunk of each text.

    Called for the chunks of a text in order, it gives the same result as `score` for the whole
    text. A text may have fewer tokens than others in the batch and padding at its end, which scores
    0.

    Args:
        model: a `RoutingTransformerCausalLM`, or an adapted one, with a preprocessor and support
            for a recurrent state.
        max_length: int, maximum number of tokens in a chunk. Defaults to 65,536.

    Returns:
        A `tf.function` that maps `ids`, int32 `[batch, length]`, and the tensors of a state by name
        to a dictionary with `log_probabilities`, float32 `[batch, length]`, and the tensors of the
        next state.

    >>> from rt_keras import data, layers, models
    >>> tokenizer = data.ByteTokenizer()
    >>> backbone = models.RoutingTransformerBackbone(
    ...     vocabulary_size=tokenizer.vocabulary_size(), num_layers=1, hidden_dim=8,
    ...     intermediate_dim=16, head_groups=[layers.LocalHeads(2, block_size=4)])
    >>> preprocessor = models.RoutingTransformerCausalLMPreprocessor(tokenizer)
    >>> model = models.RoutingTransformerCausalLM(backbone, preprocessor)
    >>> state = starting_function(model)(tf.constant(1))
    >>> outputs = state_scoring_function(model)(tf.constant([[97, 98]]), state)
    >>> outputs.pop("log_probabilities").shape, outputs.keys() == state.keys()
    (TensorShape([1, 2]), True)
    """
    tokenizer = model.preprocessor.tokenizer

    def padded_at_end(ids):
        real = signatures.real_tokens(tokenizer, ids)
        return real | ~tf.pad(real[:, 1:], [[0, 0], [0, 1]]), "padding must be at the end"

    specs = [tf.TensorSpec([None, None], tf.int32, name="ids"), _specs(model)]

    @tf.function(input_signature=specs, autograph=False)
    def score_next(ids, state):
        ids = signatures.checked_ids(model, ids, max_length, padded_at_end)
        state = _nested(model, state, tf.shape(ids)[0])
        real = signatures.real_tokens(tokenizer, ids)
        hidden, state = _read(model, ids, real, state)
        log_probabilities = tf.where(real, -signatures.nats_in_chunks(model, hidden, ids), 0.0)
        return {"log_probabilities": log_probabilities, **_flat(state)}

    return score_next


def state_generating_function(model, max_length=signatures.MAX_LENGTH):
    """Returns the signature `generate_next`, which continues each text after the next prompt.

    Args:
        model: a `RoutingTransformerCausalLM`, or an adapted one, with a preprocessor and support
            for a recurrent state.
        max_length: int, maximum number of tokens in a prompt, and in a continuation. Defaults to
            65,536.

    Returns:
        A `tf.function` that takes `prompts`, string `[batch]`, which may be empty strings, the
        tensors of a state by name, and the parameters of `generating_function` with its defaults.
        It returns a dictionary with `continuations`, string `[batch]`, and the tensors of the next
        state.

    >>> from rt_keras import data, layers, models
    >>> tokenizer = data.ByteTokenizer()
    >>> backbone = models.RoutingTransformerBackbone(
    ...     vocabulary_size=tokenizer.vocabulary_size(), num_layers=1, hidden_dim=8,
    ...     intermediate_dim=16, head_groups=[layers.LocalHeads(2, block_size=4)])
    >>> preprocessor = models.RoutingTransformerCausalLMPreprocessor(tokenizer)
    >>> model = models.RoutingTransformerCausalLM(backbone, preprocessor)
    >>> state = starting_function(model)(tf.constant(1))
    >>> generate_next = state_generating_function(model)
    >>> outputs = generate_next(tf.constant(["abc"]), state, max_new_tokens=tf.constant(4))
    >>> outputs.pop("continuations").shape, outputs.keys() == state.keys()
    (TensorShape([1]), True)
    """
    tokenizer = model.preprocessor.tokenizer
    served = served_tokenizer(tokenizer)
    stops = stop_tokens(tokenizer)
    specs = [tf.TensorSpec([None], tf.string, name="prompts"), _specs(model), *signatures.SAMPLING]

    @tf.function(input_signature=specs, autograph=False)
    def generate_next(
        prompts,
        state,
        max_new_tokens=signatures.COUNT,
        temperature=signatures.TEMPERATURE,
        top_p=signatures.TOP_P,
        top_k=signatures.TOP_K,
        seed=signatures.SEED,
    ):
        prompts = signatures.checked_texts("prompts", prompts, tokenizer)
        batch = tf.shape(prompts)[0]
        state = _nested(model, state, batch)
        options = max_new_tokens, temperature, top_p, top_k, seed
        sampler = signatures.checked_sampler(model, batch, *options)
        count = checks.not_longer("max_new_tokens", sampler.max_new_tokens, max_length)
        ids = served.tokens(prompts)
        lengths = checks.not_longer("prompts", tf.cast(ids.row_lengths(), tf.int32), max_length)
        # One extra position, because a chunk must not be empty.
        ids = tf.pad(ids.to_tensor(tokenizer.pad_token_id), [[0, 0], [0, 1]])
        _, state = _read(model, ids, tf.range(tf.shape(ids)[1]) < lengths[:, None], state)

        places = tf.range(tf.reduce_max(count) + 1)
        first = tf.broadcast_to(places == 0, [batch, tf.size(places)])

        def read_one(tokens, read, index):
            """Computes the logits at an index, for rows that have not ended."""
            goes_on = written_tokens(tokens, first, stops)[:, index] & (index <= count)
            goes_on = tf.cast(goes_on, tf.int32)
            hidden, read = model.read_on(tokens[:, index - 1, None], read, goes_on)
            return model.token_logits(hidden)[:, 0], None, read

        tokens, read = sampler.sample(
            read_one,
            prompt=tf.where(first, state["token"][:, None], tokenizer.pad_token_id),
            cache=state["read"],
            index=1,
            mask=first,
            stop_token_ids=stops,
        )
        new = (places > 0) & (places <= count[:, None]) & written_tokens(tokens, first, stops)
        # The last token is generated but not yet processed by the model.
        last = tf.reduce_sum(tf.cast(new, tf.int32), axis=1)
        state = {"read": read, "token": tf.gather(tokens, last, batch_dims=1)}
        return {"continuations": served.strings(tokens, new), **_flat(state)}

    return generate_next


def _first_state(model, rows):
    """Returns the initial state, in which the start token has not been processed yet."""
    token = tf.fill([rows], signatures.token_before(model.preprocessor))
    return {"read": model.new_state(rows), "token": token}


def _read(model, ids, real, state):
    """Processes the last token of the previous chunk and all but the last token of this one.

    Returns the hidden states that predict each token of the chunk, and the state after it.
    """
    joined = tf.concat([state["token"][:, None], ids], axis=1)
    count = tf.reduce_sum(tf.cast(real, tf.int32), axis=1)
    hidden, read = model.read_on(joined[:, :-1], state["read"], count)
    return hidden, {"read": read, "token": tf.gather(joined, count, batch_dims=1)}


def _specs(model):
    """Returns the specs of the tensors of a state by name."""
    tensors = _flat(_first_state(model, 1))
    return {
        name: tf.TensorSpec([None, *x.shape[1:]], x.dtype, name=name) for name, x in tensors.items()
    }


def _flat(state):
    """Flattens a state to tensors by name."""
    return {f"state_{number:02d}": x for number, x in enumerate(tf.nest.flatten(state))}


def _nested(model, tensors, batch):
    """Checks the tensors of a state by name and nests them."""
    empty = _first_state(model, 1)
    names = tf.nest.pack_sequence_as(empty, list(_flat(empty)))

    def checked(name, none):
        # The error shows both shapes and this operation's name.
        what = f"{name}_must_have_the_shape_of_new_state"
        value = tf.ensure_shape(tensors[name], [None, *none.shape[1:]], name=what)
        return checks.as_many_rows(name, value, batch)

    state = tf.nest.map_structure(checked, names, empty)
    known = checks.from_0_to(model.backbone.vocabulary_size - 1)
    state["token"] = checks.checked(names["token"], state["token"], 1, [known])
    name, position = names["read"]["position"], state["read"]["position"]
    state["read"]["position"] = checks.checked(name, position, 1, [checks.from_0_to(NO_END)])
    return state
