"""`rt-keras analyze`: inspects the attention of a model.

example: rt-keras analyze causality --help
"""

from rt_keras.cli import options

SEQUENCES = "number of sequences of the split to inspect"
# A picture has all pairs of positions.
MOST_DRAWN = 512
# Keys in the best blocks of a pretrained model.
BLOCK_SIZE = 8


def add_arguments(parser):
    """Adds the command's subcommands to an `argparse` parser."""
    commands = parser.add_subparsers(required=True, metavar="ANALYSIS")
    options.add_command(commands, "causality", add_causality_arguments, analyze_causality)
    options.add_command(commands, "heads", add_heads_arguments, analyze_heads)
    options.add_command(commands, "clusters", add_clusters_arguments, analyze_clusters)
    options.add_command(commands, "attention", add_attention_arguments, analyze_attention)


def add_causality_arguments(parser):
    """Adds the arguments of `analyze causality` to an `argparse` parser."""
    options.add_examples(parser)
    integers = {
        "sequences": (4, SEQUENCES),
        "positions": (16, "number of positions to change, and prefixes to score, per sequence"),
        "changes": (2, "number of replacements at each position"),
        "seed": (0, "random seed"),
    }
    options.add_integers(parser, integers)


def analyze_causality(args):
    """Measures how much a language model depends on later tokens.

    Replaces later tokens and counts which earlier outputs change, and compares the loss of the
    whole sequence with the loss prefix by prefix.

    example: rt-keras analyze causality --model runs/books --json causality.json
    """
    from rt_keras.analysis import causality

    options.check_at_least_one(args, "sequences", "positions", "changes")
    model, sequences, name = _load_sequences(args)
    counts = args.positions, args.changes, args.seed
    figures = causality.measure(model, sequences, *counts, verbose=1)
    print(f"{len(sequences)} sequences of {name}\n{causality.report(figures)}")
    return figures


def _load_sequences(args):
    """Loads a causal language model, sequences of tokens, each with the next token, and their name.

    Only sequences of full length are returned.
    """
    import numpy as np

    model, task, documents, name = options.load_examples(args)
    if not task.continues_text:
        raise ValueError(f"--model {args.model} must be a causal language model")
    batches = task.evaluation_batches(model, documents, 1, model.preprocessor)
    # The first sequence of a text may be one token shorter than the others.
    starts = task.start_token(model.preprocessor) is not None
    length = model.preprocessor.sequence_length - int(starts)
    rows = [
        np.concatenate([inputs["token_ids"][0, :length], labels[0, length - 1 : length]])
        for inputs, labels, _ in batches.take(args.sequences).as_numpy_iterator()
        if inputs["padding_mask"][0, :length].all()
    ]
    if not rows:
        raise ValueError(f"{name} is shorter than one sequence of the model")
    return model, np.stack(rows), name


def add_heads_arguments(parser):
    """Adds the arguments of `analyze heads` to an `argparse` parser."""
    options.add_examples(parser)
    options.add_integers(parser, {"sequences": (4, SEQUENCES)})
    options.add_plot(parser, "the attention maps of heads on the first sequence")
    what = "the heads to draw, numbered from 0 (default: the first of each kind in each layer)"
    options.add_options(parser, {"--heads LAYER.HEAD": what}, nargs="+")
    what = f"number of first positions to draw, up to {MOST_DRAWN}; up to 64 have token labels"
    options.add_integers(parser, {"positions": (64, what)})


def analyze_heads(args):
    """Compares what the heads of each layer attend to.

    The measure is the Jensen-Shannon divergence between the attention weights of two heads, for
    each pair of kinds of heads, over all positions of some sequences.

    example: rt-keras analyze heads --model runs/books --plot heads.png
    """
    from rt_keras.analysis import heads

    options.check_at_least_one(args, "sequences")
    options.check_range(args, "positions", 1, MOST_DRAWN)
    options.check_picture(args)
    if args.heads and not args.plot:
        raise ValueError("--heads needs --plot, the file to draw to")
    model, task, documents, name = options.load_examples(args)
    batches = task.evaluation_batches(model, documents, 1, model.preprocessor)
    batches = [inputs for inputs, _, _ in batches.take(args.sequences)]
    if not batches:
        raise ValueError(f"{name} is empty")
    if args.plot:
        _draw_heads(args, model, task, batches[0])
    figures = heads.measure(model, batches, verbose=1)
    print(f"{len(batches)} sequences of {name}\n{heads.report(figures)}")
    return figures


def _draw_heads(args, model, task, inputs):
    from rt_keras.analysis import attention_map

    maps = attention_map.first_positions(model, inputs, args.positions)
    if task.continues_text:
        ids = inputs["token_ids"][0, : args.positions].numpy()
        maps["tokens"] = attention_map.readable(model.preprocessor.tokenizer, ids)
    else:
        maps["tokens"] = list(map(str, range(maps["weights"][0].shape[1])))
    attention_map.draw(maps, args.plot, _chosen(args.heads, maps["heads"]))
    print(f"wrote {args.plot}")


def _chosen(names, kinds):
    """Returns the pairs (layer, head) of `--heads`. `kinds` has the kinds of heads by layer."""
    pairs = {
        f"{layer}.{head}": (layer, head)
        for layer, heads in enumerate(kinds)
        for head, kind in enumerate(heads)
        if names or kind not in heads[:head]
    }
    for name in names or ():
        if name not in pairs:
            raise ValueError(
                f"--heads must be LAYER.HEAD from 0.0 to {list(pairs)[-1]}. Received: {name}"
            )
    return [pairs[name] for name in names or pairs]


def add_clusters_arguments(parser):
    """Adds the arguments of `analyze clusters` to an `argparse` parser."""
    options.add_examples(parser)
    options.add_integers(parser, {"sequences": (16, SEQUENCES)})
    options.add_plot(parser, "the clusters of the first 128 positions")


def analyze_clusters(args):
    """Shows which tokens share a cluster, and how large clusters are.

    For the queries and keys of each head with clusters, it prints the load of each cluster (its
    number of positions relative to the mean) and its most characteristic tokens, in byte models
    each after the four previous bytes.

    example: rt-keras analyze clusters --model runs/books --json clusters.json
    """
    from rt_keras.analysis import clusters

    options.check_at_least_one(args, "sequences")
    options.check_picture(args)
    model, sequences, name = _load_sequences(args)
    sequences, tokenizer = sequences[:, :-1], model.preprocessor.tokenizer
    found = clusters.find(model, sequences, verbose=1)
    if args.plot:
        clusters.draw(found, sequences[0], tokenizer, args.plot)
        print(f"wrote {args.plot}")
    figures = clusters.measure(found, sequences, tokenizer)
    print(f"{len(sequences)} sequences of {name}\n{clusters.report(figures)}")
    return figures


def add_attention_arguments(parser):
    """Adds the arguments of `analyze attention` to an `argparse` parser."""
    options.add_language_model(parser)
    options.add_options(parser, {"--text FILE": "the text that the model reads"}, required=True)
    integers = {
        "length": (2048, "number of tokens that the model reads"),
        "queries": (64, "number of queries to measure, in the second half"),
        "keys": (128, f"number of keys in the best blocks, a multiple of {BLOCK_SIZE}"),
    }
    options.add_integers(parser, integers)
    options.add_plot(parser, "all figures of all heads")


def analyze_attention(args):
    """Measures which share of a model's attention sets of keys cover.

    For each head, it reports the number of keys that hold 90% of the weight, the entropy of the
    weights, and the share of the weight on a window, on the first tokens before it, and on a
    number of other keys before it: the best blocks of neighbors, the best blocks of similar keys,
    and the best keys.

    example: rt-keras analyze attention --model SmolLM2-135M --text book.txt --plot mass.png
    """
    options.check_range(args, "length", 2)
    options.check_at_least_one(args, "queries", "keys")
    if args.keys % BLOCK_SIZE:
        raise ValueError(f"--keys must be a multiple of {BLOCK_SIZE}. Received: {args.keys}")
    options.check_picture(args)
    options.check_text_files(args, "text")
    from rt_keras.analysis import attention_mass
    from rt_keras.data.text_tokens import first_tokens_of
    from rt_keras.layers.kinds import FullHeads
    from rt_keras.models.adapted.adapt import adapt

    # `layers=[]` replaces the heads of no layer.
    model = adapt(args.model, [FullHeads(1)], layers=[])
    if not hasattr(model, "hidden_states"):
        raise ValueError(f"--model {args.model} must be a causal language model")
    tokens = first_tokens_of(args.text, model.preprocessor.tokenizer, args.length)
    figures = attention_mass.measure(model, tokens, args.queries, args.keys)
    print(f"{args.length:,} tokens of {args.text}\n{attention_mass.report(figures)}")
    if args.plot:
        attention_mass.draw(figures, args.plot)
        print(f"wrote {args.plot}")
    return figures
