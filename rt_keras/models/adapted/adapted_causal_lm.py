"""Generation with KerasHub's language models on adapted backbones."""

import contextvars
import functools
import warnings

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.data.batches import check_at_least_one
from rt_keras.keys import wrong_value
from rt_keras.models.adapted.architectures import architecture
from rt_keras.models.adapted.graph_generation import GraphGeneration
from rt_keras.models.adapted.prompt_reading import PromptReading, weights_of
from rt_keras.models.adapted.token_scores import TokenScores
from rt_keras.models.adapted.transformers_files import TransformersFiles
from rt_keras.models.generation import (
    array_of,
    as_tensor,
    check_positions,
    check_room,
    start_tokens,
    written_tokens,
)
from rt_keras.models.left_padding import generate_from_first_tokens
from rt_keras.models.programs import compile_once
from rt_keras.models.shared_blocks import new_caches
from rt_keras.models.token_loop import as_variables, continue_tokens, draws_in_place
from rt_keras.ops.blocks import places_of_rows, size

# State and number of new tokens of a call of `generate`, which KerasHub does not pass on.
CALL = contextvars.ContextVar("call", default=(None, None))


class AdaptedCausalLM(GraphGeneration, PromptReading, TokenScores, TransformersFiles):
    """Mixin of adapted language models: generation with KerasHub's samplers.

    Prompts are read first; see `PromptReading`. Then a sampler continues all rows at once, each
    from the end of its own prompt.
    """

    def new_cache(self, batch, max_length):
        """Returns an empty cache for `call_with_cache`.

        Args:
            batch: int or scalar tensor, number of rows.
            max_length: int, maximum number of positions.

        Returns:
            Tuple of the cache of each layer: nested dictionaries and tuples of tensors with the
            batch on axis 0. Equal layers share theirs.
        """
        return new_caches(self._causal_attention(), batch, max_length)

    def call_with_cache(self, token_ids, cache, cache_update_index, count=None):
        """Runs the model on the next tokens, given the cache of the previous ones.

        Args:
            token_ids: int `[batch, length]`.
            cache: cache from the last call or from `new_cache`.
            cache_update_index: int scalar, position of the first of these tokens; or int `[batch]`,
                one for each row.
            count: int `[batch]`, number of tokens in each row, the first ones; the others are
                padding. Defaults to None, for no padding.

        Returns:
            Tuple of the logits, `[batch, length, vocabulary_size]`, the last hidden states,
            `[batch, length, hidden_dim]`, and the cache with these positions.
        """
        token_ids = as_tensor("token_ids", token_ids, [None, None])
        hidden, cache = self._read(token_ids, cache, cache_update_index, count)
        return self.backbone.token_embedding(hidden, reverse=True), hidden, cache

    def states_in_place(self, tokens, caches, position):
        """See `rt_keras.models.token_loop`."""
        programs = self._block_programs(in_place=True)
        return self._run_blocks(programs, tokens, caches, position)[0]

    def _read(self, token_ids, cache, position, count=None):
        """Returns the hidden states of the next tokens, and the cache."""
        programs = self._block_programs(in_place=False, jit_compile=False)
        return self._run_blocks(programs, token_ids, cache, position, count)

    def _run_blocks(self, programs, token_ids, cache, position, count=None):
        """Returns the hidden states of the next tokens, and what the programs return as caches."""
        made_of = architecture(self.backbone)
        positions = places_of_rows(position, tf.range(size(token_ids, 1)))
        x = made_of.embed(self.backbone, token_ids, positions)
        rotations, caches = self._rotations(position, size(token_ids, 1)), []
        blocks = zip(self.backbone.transformer_layers, programs, cache, rotations, strict=True)
        for block, program, of_block, rotation in blocks:
            x, kept = program(*weights_of(block), x, of_block, position, count, rotation)
            caches.append(kept)
        return getattr(self.backbone, made_of.layer_norm)(x), tuple(caches)

    # Generation.

    def generate(
        self,
        inputs,
        max_length=None,
        stop_token_ids="auto",
        strip_prompt=False,
        state=None,
        max_new_tokens=None,
    ):
        """Continues prompts, each from its own end.

        Args:
            inputs, max_length, stop_token_ids, strip_prompt: see `keras_hub.models.CausalLM`.
            state: state from `read`, whose text precedes the prompts. A state of one row precedes
                every prompt. `max_length` does not count its tokens, and the result does not repeat
                them. Defaults to None, for no preceding text.
            max_new_tokens: int, maximum number of tokens added to each row, instead of
                `max_length`. Without a preprocessor, the prompts must have room for them. Defaults
                to None, for up to `max_length`.

        Returns:
            A string, a list of strings, or a dictionary of token ids and a mask.

        Raises:
            ValueError: if the heads cannot decode with a cache, a number is out of range, a prompt
                is longer than `max_length`, the text could have more tokens than the model has
                learned positions, or the state has the wrong number of rows or not enough room.
        """
        check_at_least_one(max_length=max_length, max_new_tokens=max_new_tokens)
        if max_new_tokens is not None and max_length is not None:
            raise ValueError(
                "Set max_length or max_new_tokens, not both. Received: "
                f"max_length={max_length}, max_new_tokens={max_new_tokens}"
            )
        counts = self._prompt_lengths(inputs)
        if max_new_tokens is not None and counts:
            max_length = max(counts) + max_new_tokens
        self._check_length(counts, max_length)
        token = CALL.set((state, max_new_tokens))
        try:
            return super().generate(
                inputs, max_length, stop_token_ids=stop_token_ids, strip_prompt=strip_prompt
            )
        finally:
            CALL.reset(token)

    def _prompt_lengths(self, inputs):
        """Returns the number of tokens of each prompt, with a start token."""
        if self.preprocessor is None:
            mask = array_of(inputs, "padding_mask") if isinstance(inputs, dict) else []
            return np.atleast_1d(np.sum(mask, axis=-1)).astype(int).tolist()
        texts = _texts_in(inputs)
        return [len(row) for row in self._token_rows([] if texts is None else texts)]

    def read(self, inputs, max_length=None, state=None, verbose=1):
        """Reads texts once, so that `generate` can continue from them any number of times.

        Args:
            inputs: a string or list of strings; without a preprocessor, int `[batch, length]` or a
                list of rows of any lengths.
            max_length: int, total number of tokens that the state has room for. Defaults to None,
                for the longest text plus the sequence length of the preprocessor.
            state: state of the preceding text. Defaults to None, for no preceding text.
            verbose: 0 for no output, 1 for a progress bar. Defaults to 1.

        Returns:
            Dictionary of "count", int `[batch]`, the number of tokens read; "room", an int; and
            "cache". Using it does not change it.

        Raises:
            ValueError: if the heads cannot decode with a cache, a text is empty, or the texts do
                not fit into the room.
        """
        rows = self._token_rows(inputs, state)
        counts = np.array([len(row) for row in rows])
        if not counts.size or not counts.min():
            raise ValueError("inputs must be texts of at least one token")
        tokens = keras.utils.pad_sequences(rows, padding="post")
        if state is not None:
            state = _of_rows(state, len(rows))
        elif max_length is None:
            max_length = int(counts.max()) + getattr(self.preprocessor, "sequence_length", 0)
        else:
            check_room(counts.max(), max_length)
        before = 0 if state is None else state["count"]
        check_positions((before + counts).max(), self.backbone.longest)
        cache, _, room = self._read_prompts(tokens, counts, state, max_length, verbose)
        return {"count": before + counts, "room": room, "cache": cache}

    def _token_rows(self, inputs, state=None):
        """Returns lists of token ids, with a start token unless there is a state."""
        texts = _texts_in(inputs)
        if self.preprocessor is None or texts is None:
            if any(np.ndim(row) != 1 for row in inputs):
                raise wrong_value("inputs", "rows of token ids, without a preprocessor", inputs)
            return [np.asarray(row).tolist() for row in inputs]
        tokenizer, texts = self.preprocessor.tokenizer, np.atleast_1d(texts).tolist()
        start = start_tokens(self.preprocessor) if state is None else []
        return [start + np.asarray(tokenizer(text)).tolist() for text in texts]

    def make_generate_function(self):
        """Returns the function that `generate` calls on a batch of token ids."""
        return functools.partial(
            generate_from_first_tokens, self, self._generate_tokens, "padding_mask"
        )

    def _generate_tokens(self, inputs, stop_token_ids=None):
        tokens = np.asarray(inputs["token_ids"], np.int32)
        mask = np.asarray(inputs["padding_mask"]).astype(bool)
        lengths, width = mask.sum(1), tokens.shape[1]
        ends = np.full_like(lengths, width)
        state, new_tokens = CALL.get()
        searches = isinstance(self.sampler, keras_hub.samplers.ContrastiveSampler)
        if state is not None and searches:
            needed = "None for a ContrastiveSampler, which needs the hidden states of all tokens"
            raise ValueError(f"state must be {needed}. Received: a state, which lacks them")
        if new_tokens is not None:
            ends = np.minimum(lengths + new_tokens, width)
        state = state and _of_rows(state, len(tokens))
        # The text of the state begins with a start token, so that of the prompt is not read.
        has_texts = state is not None and self.preprocessor is not None
        begin = len(start_tokens(self.preprocessor)) if has_texts else 0
        if lengths.min() <= begin:
            raise ValueError("With a state, each prompt must have at least one token")
        offset = np.zeros_like(lengths) if state is None else state["count"] - begin
        check_positions((offset + ends).max(), self.backbone.longest)
        cache, hidden, _ = self._read_prompts(
            tokens[:, begin:], lengths - 1 - begin, state, width, with_hidden=searches
        )
        stops = tuple(() if stop_token_ids is None else stop_token_ids) or None
        if draws_in_place(self):
            numbers = lengths - 1, offset, ends, stops or (), (ends - lengths).max()
            found = continue_tokens(self, tokens, lengths, as_variables(cache), *numbers)
        else:
            found = self._continued_by_search(tokens, cache, lengths, offset, ends, stops, hidden)
        places = np.arange(width) < ends[:, None]
        written = np.asarray(written_tokens(found, mask, stops)) & places
        return {"token_ids": np.where(places, found, 0), "padding_mask": written}

    def _continued_by_search(self, tokens, cache, lengths, offset, ends, stops, hidden):
        """Continues prompts with a sampler that compares several continuations."""
        sampler = self.sampler
        even = bool(np.all(lengths == lengths[0]) and np.all(offset == offset[0]))
        sample = compile_once(
            self, f"sampling, {even=}", functools.partial(self._sample, sampler, even)
        )
        return sample(
            int(lengths.max() + (ends - lengths).max()),
            tf.constant(tokens),
            *(tf.constant(x, tf.int32) for x in (lengths, offset, ends)),
            cache,
            hidden,
            stop_token_ids=stops,
        )

    def _sample(
        self,
        sampler,
        even,
        columns,
        tokens,
        lengths,
        offset,
        ends,
        cache,
        hidden=None,
        stop_token_ids=None,
    ):
        """Continues prompts of different lengths.

        Args:
            sampler: a `keras_hub.samplers.Sampler`.
            even: bool, whether all rows are at the same position.
            columns: int or int scalar, length of the rows after a shift to the right that makes all
                prompts end in the same column.
            tokens: int `[batch, length]`, left-aligned prompts.
            lengths: int `[batch]`, lengths of the prompts.
            offset: int `[batch]` or 0, number of positions before the first token.
            ends: int `[batch]` or int scalar, lengths at which rows end.
            cache: cache of the prompts without their last tokens.
            hidden: `[batch, length or less, hidden_dim]`, hidden states of the last tokens; or
                None.
            stop_token_ids: tuple or list of ints, or None.

        Returns:
            int `[batch, length]`.
        """
        width, index = size(tokens, 1), tf.reduce_max(lengths)
        shift = index - lengths
        limit = ends + shift
        places = tf.range(columns) - shift[:, None]
        known = places < lengths[:, None]

        def moved(x):
            # The first entry of a row fills the space to its left.
            inside = tf.clip_by_value(places - (width - size(x, 1)), 0, size(x, 1) - 1)
            return tf.gather(x, inside, axis=1, batch_dims=1)

        def following(tokens, cache, index):
            # A search has several sequences for each prompt.
            each = tf.shape(tokens)[0] // tf.shape(lengths)[0]
            # A finished row stays at its last position, for which there is room.
            rows = tf.minimum(index, limit) - 1 - shift + offset
            position = rows[0] if even else tf.repeat(rows, each)
            logits, states, cache = self.call_with_cache(
                tokens[:, index - 1, None], cache, position
            )
            # A finished row continues with a token of probability 1, which costs a search nothing:
            # a stop token if there is one.
            end = stop_token_ids[0] if stop_token_ids else 0
            ending = tf.one_hot(end, logits.shape[-1], 0.0, logits.dtype.min, dtype=logits.dtype)
            ended = index >= tf.repeat(limit, each)
            logits = tf.where(ended[:, None], ending, logits[:, 0])
            return logits, states[:, 0], cache

        found = sampler(
            next=following,
            prompt=tf.where(known, moved(tokens), 0),
            cache=cache,
            index=index,
            mask=known,
            stop_token_ids=stop_token_ids,
            hidden_states=None if hidden is None else moved(hidden),
            model=self,
        )
        back = tf.minimum(tf.range(width) + shift[:, None], columns - 1)
        return tf.gather(found, back, axis=1, batch_dims=1)

    def _check_length(self, counts, max_length):
        """Raises an error if a prompt has no room; warns if text exceeds the trained length."""
        trained, length = self.backbone.trained_length, max_length
        if self.preprocessor is not None:
            length = length or self.preprocessor.sequence_length
        if counts and length is not None:
            check_room(max(counts), length)
        if trained is not None and length is not None and length > trained:
            warnings.warn(
                f"max_length={length} exceeds the {trained} positions that the model was trained "
                "on. Text beyond them may be nonsense",
                stacklevel=3,
            )


def _of_rows(state, rows):
    """Returns a state with the given number of rows."""
    batch = len(state["count"])
    if batch == rows:
        return state
    if batch != 1:
        raise ValueError(f"state has {batch} rows, but the inputs have {rows}")
    cache = tf.nest.map_structure(lambda x: tf.repeat(x, rows, axis=0), state["cache"])
    return {**state, "count": np.repeat(state["count"], rows), "cache": cache}


def _texts_in(inputs):
    """Returns texts, of which arrays and tensors are lists; None for token ids and data sets."""
    if isinstance(inputs, (np.ndarray, tf.Tensor)):
        return np.asarray(inputs).tolist() if np.asarray(inputs).dtype.kind in "OSU" else None
    return inputs if isinstance(inputs, (str, list, tuple)) else None
