"""KerasHub's language models on adapted backbones."""

import contextvars
import functools
import warnings

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.data.batches import check_at_least_one
from rt_keras.models.adapted.architectures import architecture
from rt_keras.models.adapted.export import write_transformers_files
from rt_keras.models.adapted.graph_generation import GraphGeneration, Prompts
from rt_keras.models.adapted.prompt_reading import PromptReading, state_of_rows
from rt_keras.models.chunked_loss import ChunkedLoss, losses_of_layer
from rt_keras.models.generation import (
    array_of,
    check_positions,
    check_room,
    start_tokens,
    written_tokens,
)
from rt_keras.models.left_padding import generate_from_first_tokens
from rt_keras.models.programs import compile_once
from rt_keras.models.scores import Scores
from rt_keras.models.token_loop import as_variables, continue_tokens, draws_in_place

# State and number of new tokens of a call of `generate`, which KerasHub does not pass on.
CALL = contextvars.ContextVar("call", default=(None, None))
# Number of logits that are computed at once: 512 MiB.
LOGITS_AT_ONCE = 2**27


class AdaptedCausalLM(GraphGeneration, PromptReading, Scores, ChunkedLoss):
    """Mixin of adapted language models: generation with KerasHub's samplers, and losses.

    Prompts are read first; see `PromptReading`. Then a sampler continues all rows at once, each
    from the end of its own prompt.

    If the loss and the metrics are computed token by token, such as cross entropy and accuracy,
    `fit` and `evaluate` never hold the logits of more than `loss_chunk_size` positions. With
    others, such as a custom loss, they hold all logits.
    """

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

    def make_generate_function(self):
        """Returns the function that `generate` calls on a batch of token ids."""
        return functools.partial(
            generate_from_first_tokens, self, self._generate_tokens, "padding_mask"
        )

    def _generate_tokens(self, inputs, stop_token_ids=None):
        """Continues prompts that start with a token."""
        tokens = np.asarray(inputs["token_ids"], np.int32)
        mask = np.asarray(inputs["padding_mask"]).astype(bool)
        lengths, width = mask.sum(1), tokens.shape[1]
        state, new_tokens = CALL.get()
        ends = np.full_like(lengths, width)
        if new_tokens is not None:
            ends = np.minimum(lengths + new_tokens, width)
        searches = isinstance(self.sampler, keras_hub.samplers.ContrastiveSampler)
        if state is not None and searches:
            needed = "None for a ContrastiveSampler, which needs the hidden states of all tokens"
            raise ValueError(f"state must be {needed}. Received: a state, which lacks them")
        # The text of the state begins with a start token, so that of the prompt is not read.
        has_texts = state is not None and self.preprocessor is not None
        begin = len(start_tokens(self.preprocessor)) if has_texts else 0
        if lengths.min() <= begin:
            raise ValueError("With a state, each prompt must have at least one token")
        state = state_of_rows(state, len(tokens), width)
        offset = state["count"] - begin
        check_positions((offset + ends).max(), self.backbone.longest)
        cache, hidden = self._read_prompts(
            tokens[:, begin:], lengths - 1 - begin, state, with_hidden=searches
        )
        stops = tuple(() if stop_token_ids is None else stop_token_ids) or None
        if draws_in_place(self):
            numbers = lengths - 1, offset, ends, stops or (), (ends - lengths).max()
            tokens = continue_tokens(self, tokens, lengths, as_variables(cache), *numbers)
        else:
            tokens = self._search(Prompts(tokens, lengths, offset, ends), cache, hidden, stops)
        places = np.arange(width) < ends[:, None]
        written = np.asarray(written_tokens(tokens, mask, stops)) & places
        return {"token_ids": np.where(places, tokens, 0), "padding_mask": written}

    def _search(self, prompts, cache, hidden, stop_token_ids):
        """Continues prompts with a sampler that compares several continuations."""
        tokens, lengths, offset, ends = prompts
        even = bool(np.all(lengths == lengths[0]) and np.all(offset == offset[0]))
        search = functools.partial(self._sample, self.sampler, even)
        search = compile_once(self, f"sampling, {even=}", search)
        numbers = (tf.constant(x, tf.int32) for x in (lengths, offset, ends))
        columns = int(lengths.max() + (ends - lengths).max())
        prompts = Prompts(tf.constant(tokens), *numbers)
        return search(columns, prompts, cache, hidden, stop_token_ids)

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
        if max_length is None:
            max_length = int(counts.max()) + getattr(self.preprocessor, "sequence_length", 0)
        elif state is None:
            check_room(counts.max(), max_length)
        state = state_of_rows(state, len(rows), max_length)
        count = state["count"] + counts
        check_positions(count.max(), self.backbone.longest)
        cache, _ = self._read_prompts(tokens, counts, state, verbose)
        return {"count": count, "room": state["room"], "cache": cache}

    def export_to_transformers(self, path):
        """Writes the model with its original attention as a folder that Transformers loads.

        Weights of LoRA are added to the kernels. Weights that only the adapted heads have are left
        out, and so are scaled positions of `max_sequence_length`, as in `rt_keras.restore`.

        Args:
            path: string or path, the folder.

        Raises:
            ValueError: if the model is quantized, KerasHub cannot write models of its family, or
                Transformers lacks one of its options.
        """
        write_transformers_files(self, path)

    # Losses.

    def compile_arguments(self, *args, **kwargs):
        """See `ChunkedLoss.compile_arguments`."""
        self.loss_chunk_size = max(1, LOGITS_AT_ONCE // self.backbone.token_embedding.input_dim)
        try:
            return super().compile_arguments(*args, **kwargs)
        except ValueError:  # The loss or a metric needs all logits.
            self.loss_chunk_size = None
            return super().compile_arguments(*args, **kwargs)

    def hidden_states(self, inputs, training=None):
        """Returns the states that logits are computed from, `[batch, length, hidden_dim]`."""
        return self.backbone(inputs, training=training)

    def token_losses(self, hidden, labels, chunk_size):
        """See `LanguageModel.token_losses`."""
        return losses_of_layer(self.backbone.token_embedding, hidden, labels, chunk_size)

    def blocks(self, padding_mask):
        """See `Scores`."""
        mask = {architecture(self.backbone).padding: padding_mask}
        return [functools.partial(block, **mask) for block in self.backbone.transformer_layers]


def _texts_in(inputs):
    """Returns texts, of which arrays and tensors are lists; None for token ids and data sets."""
    if isinstance(inputs, (np.ndarray, tf.Tensor)):
        return np.asarray(inputs).tolist() if np.asarray(inputs).dtype.kind in "OSU" else None
    return inputs if isinstance(inputs, (str, list, tuple)) else None
