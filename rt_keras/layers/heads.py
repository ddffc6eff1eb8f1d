"""Heads that attend to a union of sets of keys under one softmax."""

import keras
import tensorflow as tf

from rt_keras.keys import wrong_value
from rt_keras.layers.centroids import Centroids
from rt_keras.layers.declared_options import options_of_kind, sets_of_kind, signature_of_kind
from rt_keras.layers.each_document import attend_to_each
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.key_sets import Cluster, KeySet
from rt_keras.layers.key_sets.key_set import Chunk
from rt_keras.layers.saved_arguments import with_layers
from rt_keras.ops.attend import merge_sets
from rt_keras.ops.blocks import size
from rt_keras.ops.caches import pad_to


def _of_all(name):
    """Returns a property for an ability that a union has if all of its sets have it."""
    return property(lambda self: all(getattr(x, name) for x in self.joined_sets))


def _of_any(name):
    """Returns a property that is True for a union if it is True for any of its sets."""
    return property(lambda self: any(getattr(x, name) for x in self.joined_sets))


@keras.saving.register_keras_serializable(package="rt_keras")
class Heads(Centroids, HeadGroup):
    """Heads whose queries attend to the keys of several sets under one softmax.

    With the output o_s of attention to set s alone, and z_s the logsumexp of its logits,

    ```
    output = sum_s exp(z_s) o_s / sum_s exp(z_s)
    ```

    The sets of a union are disjoint by position: those with a `Window` leave out its keys. The
    heads have the abilities that all of their sets have, such as decoding with a bounded cache.

    Most kinds of heads are unions: a subclass declares the classes of its sets, and their fields
    are its arguments.

    Args:
        num_heads: int, number of heads in the group.
        key_sets: list of `rt_keras.layers.key_sets.KeySet`, at most one of each class.
        share_qk: bool, whether queries are also keys. Defaults to False.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if `key_sets` is not such a list, or a set cannot be merged with the others.

    Source: ours. One softmax over a window and selected keys: after Wu et al. 2022, Memorizing
    Transformers.

    >>> from rt_keras.layers.key_sets import Cluster, Persistent, Window
    >>> heads = Heads(2, [Window(4), Cluster(4, window_size=4), Persistent(2)])
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    separates_documents = True
    # Relative positions belong to the sets of keys.
    takes_relative_positions = False
    # The values of the declared sets' fields that are not arguments.
    fixed = {}
    # Whether `share_qk` is an argument of a declared kind.
    can_share_qk = False

    strictly_causal = _of_all("strictly_causal")
    needs_causal_mask = _of_any("needs_causal_mask")
    takes_causal_mask = _of_all("takes_causal_mask")
    takes_attention_mask = _of_all("takes_attention_mask")
    takes_global_tokens = _of_all("takes_global_tokens")
    cached_decoding = _of_all("cached_decoding")
    cached_cross_attention = _of_all("cached_cross_attention")
    cache_grows = _of_any("cache_grows")
    reads_chunks = _of_all("reads_chunks")
    groups_queries = _of_all("groups_queries")
    has_query_key_norm = _of_all("has_query_key_norm")
    adds_to_values = _of_any("adds_to_values")

    def __init_subclass__(cls, **kwargs):
        if "declared" in vars(cls):
            cls.__init__ = _init_of_declared(cls)
        super().__init_subclass__(**kwargs)

    def __init__(self, num_heads, key_sets, share_qk=False, **kwargs):
        super().__init__(num_heads, **kwargs)
        if not (key_sets and all(isinstance(x, KeySet) for x in key_sets)):
            example = "[Window(64), Cluster(16, window_size=48)]"
            needed = f"a list of at least one set of keys, such as {example}"
            raise wrong_value("key_sets", needed, key_sets)
        names = [x.name for x in key_sets]
        if len(set(names)) < len(names):
            raise wrong_value("key_sets", "of different classes", key_sets)
        self.key_sets = tuple(key_sets)
        self.share_qk = bool(share_qk)
        self.joined_sets = tuple(
            x.beside([other for other in key_sets if other is not x]) for x in key_sets
        )
        alone = [x for x in self.joined_sets if not x.joins]
        if len(names) > 1 and alone:
            others = ", ".join(repr(x) for x in self.joined_sets if x is not alone[0])
            raise ValueError(
                f"{alone[0]!r} cannot be joined with other sets of keys under one softmax. "
                f"Received: {others}"
            )
        for with_centroids in self._sets_with_centroids:
            self.num_clusters = with_centroids.num_clusters
            self.commitment_weight = with_centroids.commitment_weight
            self.seed = with_centroids.seed
            self.seed_generator = keras.random.SeedGenerator(self.seed)

    @property
    def _sets_with_centroids(self):
        return [x for x in self.joined_sets if x.clusters_queries_alone is not None]

    @property
    def has_centroids(self):
        """Returns whether one of the sets has centroids."""
        return bool(self._sets_with_centroids)

    @property
    def clusters_queries_alone(self):
        """Returns whether centroids learn only from queries, because these are also the keys."""
        return self.share_qk or self._sets_with_centroids[0].clusters_queries_alone

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        for key_set in self.joined_sets:
            key_set.build(self, query_shape[-1], self.value_depth)

    def build_positions(self, depth):
        for key_set in self.joined_sets:
            key_set.build_positions(self, depth)

    def _chunk(self, *, key, **arguments):
        """Returns the inputs of the sets. Keys are None if queries are also keys."""
        return Chunk(key=None if self.share_qk else key, **arguments)

    def attend(self, *, return_logsumexp=False, **arguments):
        chunk = self._chunk(**arguments)
        length = size(chunk.value, 2)
        reached = [x for x in self._with_chunks(chunk) if not x[0].is_out_of_reach(length)]
        joins = return_logsumexp or len(reached) > 1
        found = [self._attend(key_set, part, joins) for key_set, part in reached]
        found = _joined(found, return_logsumexp)
        if chunk.query_mask is None or len(reached) == 1:
            return found
        # Padding attends to sets without positions, so its outputs must be set to 0.
        real = tf.cast(chunk.query_mask, tf.bool)[:, None, :, None]
        output, *logsumexp = found if return_logsumexp else (found,)
        output = tf.where(real, output, tf.zeros_like(output))
        return (output, *logsumexp) if return_logsumexp else output

    def _attend(self, key_set, chunk, joins):
        if chunk.documents is None or key_set.separates_documents:
            return key_set.attend(self, chunk, joins)

        def attend(**arguments):
            return key_set.attend(self, Chunk(**arguments), joins)

        arguments = chunk._replace(documents=None)._asdict()
        furthest = key_set.furthest_left_out if joins else None
        return attend_to_each(self, attend, chunk.documents, arguments, joins, furthest)

    def after_attention(self, **arguments):
        if self.has_centroids:
            self.learn(**{k: v for k, v in arguments.items() if k != "value"})

    def clustered_vectors(self, *, query, query_mask, documents=None, **keys):
        with_centroids = self._sets_with_centroids[0]
        if isinstance(with_centroids, Cluster):
            query = with_centroids.routed_query(self, query, query_mask, documents=documents)
        return super().clustered_vectors(query=query, query_mask=query_mask, **keys)

    def prefill_cache(self, *, max_length, **arguments):
        chunk = self._chunk(**arguments)
        sets = [x for x in self.joined_sets if not x.is_out_of_reach(max_length)]
        states = {x.name: x.prefill_state(self, chunk, max_length) for x in sets}
        return {name: state for name, state in states.items() if state}

    def decode_step(self, *, cache, return_logsumexp=False, **arguments):
        return self._read("decode_step", cache, return_logsumexp, self._chunk(**arguments))

    def read_chunk(self, *, cache, **arguments):
        if not self.reads_chunks:
            return super().read_chunk(cache=cache, **arguments)
        joins = arguments.pop("return_logsumexp", False)
        return self._read("read_chunk", cache, joins, self._chunk(**arguments))

    def _with_chunks(self, chunk):
        """Returns each set of keys with its chunk, all with different seeds.

        The seed is split as if the sets were merged one after the other.
        """
        chunks, seed = [], chunk.seed
        for _ in self.joined_sets[1:]:
            last = seed
            if seed is not None:
                seed, last = tf.unstack(tf.random.split(seed, 2))
            chunks.insert(0, chunk._replace(seed=last))
        return list(zip(self.joined_sets, [chunk._replace(seed=seed), *chunks], strict=True))

    def _read(self, way, cache, return_logsumexp, chunk):
        """Computes the outputs and the cache of the next positions with a method of the sets."""
        # A set without a state is out of reach.
        reached = [
            (key_set, part)
            for key_set, part in self._with_chunks(chunk)
            if key_set.name in cache or key_set.furthest_left_out is None
        ]
        joins, found, after = return_logsumexp or len(reached) > 1, [], {}
        for key_set, part in reached:
            output, state = getattr(key_set, way)(self, part, cache, joins)
            found.append(output)
            if state:
                after[key_set.name] = state
        return _joined(found, return_logsumexp), after

    def cross_step(self, **arguments):
        # A union of several sets does not support cross-attention.
        return self.joined_sets[0].cross_step(self, Chunk(**arguments))

    def cross_attention_prefill(self, query, value, key, key_mask=None):
        length = self.joined_sets[0].cross_length(size(query, 2), size(value, 2))
        output = super().cross_attention_prefill(pad_to(query, length), value, key, key_mask)
        return output[:, :, : size(query, 2)]

    def _described(self):
        if self.declared:
            return type(self).__name__ + self.joined_sets[0].described()
        sets = zip(self.key_sets, self.joined_sets, strict=True)
        described = [type(given).__name__ + joined.described() for given, joined in sets]
        return f"{type(self).__name__} of {', '.join(described)}"

    def get_config(self):
        config = super().get_config()
        if not self.declared:
            config["key_sets"] = [keras.saving.serialize_keras_object(x) for x in self.key_sets]
        return config

    @classmethod
    def from_config(cls, config):
        if "key_sets" in config:
            config = with_layers(config, "key_sets")
        return super().from_config(config)


def _joined(found, return_logsumexp):
    """Merges the attention to each set under one softmax."""
    if len(found) == 1:
        return found[0]
    return merge_sets(*found, return_logsumexp=return_logsumexp)


def _init_of_declared(cls):
    """Returns the constructor of a kind whose arguments are the fields of its sets."""
    signature = signature_of_kind(cls)

    def __init__(self, *args, **kwargs):
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        options = {**cls.fixed, **bound.arguments}
        kwargs = options.pop("kwargs")
        fixed = {"share_qk": False, **cls.fixed}
        for name in kwargs.keys() & fixed.keys():
            # Sections of a configuration may contain it.
            value = kwargs.pop(name)
            if value != fixed[name]:
                raise ValueError(f"{name} must be {fixed[name]!r}. Received: {name}={value!r}")
        Heads.__init__(
            self,
            options["num_heads"],
            sets_of_kind(cls, options),
            share_qk=options.get("share_qk", False),
            **kwargs,
        )
        for name, option in options_of_kind(cls).items():
            if option.owner in cls.declared:
                index = cls.declared.index(option.owner)
                # The value in the union, if it has one.
                given = getattr(self.key_sets[index], name)
                setattr(self, name, getattr(self.joined_sets[index], name, given))

    __init__.__signature__ = signature
    return __init__
