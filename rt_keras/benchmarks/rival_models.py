"""Models of other packages, of the same shape, built and trained as their users would.

The models of this package are in `rt_keras.benchmarks.models`. The only rival is
`RoutingTransformerLM` of the package `routing-transformer`. It has rotary embeddings and, if
causal, shared queries and keys in its routing heads.
"""

VOCABULARY = 256
HEADS = 4


def build(length, window, layers, width):
    """Builds a causal `RoutingTransformerLM` with two local and two routing heads.

    Args:
        length: int, the number of positions; there are length / window clusters.
        window: int, the cluster size and the block size of local attention.
        layers: int, the number of blocks.
        width: int, the width of the blocks.

    Returns:
        A tuple of the model and its device.
    """
    import torch
    from routing_transformer import RoutingTransformerLM

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = RoutingTransformerLM(
        num_tokens=VOCABULARY,
        dim=width,
        depth=layers,
        max_seq_len=length,
        heads=HEADS,
        dim_head=width // HEADS,
        n_local_attn_heads=HEADS // 2,
        window_size=window,
        local_attn_window_size=window,
        ff_mult=4,
        ff_glu=True,
        causal=True,
    )
    return model.to(device), device


def prepare_step(kind, length, batch, window, layers, width):
    """Makes a model and a function that trains it for one step, with Adam.

    The package moves its clusters during the step.

    Args:
        kind: string, "routing_transformer".
        length, window, layers, width: see `build`.
        batch: int, the number of sequences in a batch.

    Returns:
        A function without arguments that returns the loss once the step is done.
    """
    import torch

    model, device = build(length, window, layers, width)
    optimizer = torch.optim.Adam(model.parameters())
    tokens = torch.randint(VOCABULARY, [batch, length + 1], device=device)

    def step():
        logits, cluster_loss = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
        loss = loss + cluster_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def prepare_generation(kind, length, tokens, window, layers, width):
    """Makes a model and a function that generates the last tokens of a sequence.

    The package has no cache: `generate` calls the model on all tokens for each new token.

    Args:
        kind: string, "routing_transformer".
        length, window, layers, width: see `build`.
        tokens: int, the number of tokens to generate, at the end of `length` positions.

    Returns:
        A function without arguments that returns the new tokens, `[1, tokens]`.
    """
    import torch
    from routing_transformer import AutoregressiveWrapper

    model, device = build(length, window, layers, width)
    model = AutoregressiveWrapper(model)
    prompt = torch.ones([1, length - tokens], dtype=torch.long, device=device)
    return lambda: model.generate(prompt, tokens).cpu()
