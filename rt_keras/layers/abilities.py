"""Abilities of heads, and of the sets of keys that they attend to."""

from typing import NamedTuple


class Abilities(NamedTuple):
    """Abilities of heads or of a set of keys. A union can do what all of its sets can.

    Attributes:
        causal, bidirectional: bool, whether a call may be causal, and whether it may not be.
        strictly_causal: bool, whether no output of a causal call depends on a later position. A
            causal mask does not ensure this if later positions influence which keys are read.
        cached: bool, whether the heads decode with a cache.
        bounded: bool, whether the cache does not grow with the sequence.
        chunks: bool, whether several positions are read in one pass, with different positions per
            row, padding on the right, dropout and statistics. Otherwise, a chunk is read step by
            step.
        across: bool, whether cross-attention of one query depends on no other query.
        pair_masks: bool, whether a call takes any mask of query-key pairs.
        documents: bool, whether the documents of a row are attended to in one pass. Otherwise, they
            are attended to one after the other.
        grouped: bool, whether heads may share keys. Otherwise, keys are repeated for each head.
        joined: bool, whether the logsumexp of the logits is known, which joins sets of keys.
        global_tokens: bool, whether queries may also attend to global tokens.
        normalized: bool, whether logits use layer-normalized queries and keys.
        linear: bool, whether outputs are weighted sums of the values and nothing else.
        weighted: bool, whether single keys have attention weights.
        rotated: bool, whether a rotary embedding applies to queries and keys.
    """

    causal: bool = True
    bidirectional: bool = True
    strictly_causal: bool = False
    cached: bool = False
    bounded: bool = True
    chunks: bool = False
    across: bool = False
    pair_masks: bool = False
    documents: bool = False
    grouped: bool = False
    joined: bool = False
    global_tokens: bool = False
    normalized: bool = False
    linear: bool = True
    weighted: bool = True
    rotated: bool = True

    @classmethod
    def of_union(cls, abilities):
        """Returns what a union of sets with these abilities can do."""
        return cls(*map(all, zip(*abilities, strict=True)))

    @property
    def stateful(self):
        """Returns whether texts of any length are read chunk by chunk, with a bounded cache."""
        return self.cached and self.bounded and self.chunks
