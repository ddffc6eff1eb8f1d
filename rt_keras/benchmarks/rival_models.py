"""Models of other packages, of the shape of our own, as their users make and train them.

Ours are in `rt_keras.benchmarks.models`. There is `RoutingTransformerLM` of the package
`routing-transformer`, which has rotary positions and, where it is causal, shares queries and keys
of its routing heads.
"""

VOCABULARY = 256
HEADS = 4


def build(length, window, layers, width):
    """A `RoutingTransformerLM` with two local and two routing heads, causal, and its device.

    Args:
        length: of the sequence; there are length / window clusters.
        window: members of a cluster, block of local attention.
        layers: number of blocks.
        width: of the blocks.
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
    """Makes a model and the function that trains it for one step, with Adam.

    The package moves its clusters itself, in the course of the gradient.

    Args:
        kind: "routing_transformer".
        length, window, layers, width: see `build`.
        batch: sequences in a batch.

    Returns:
        A function without arguments. It returns the loss, once the step is done.
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
    """Makes a model and the function that generates the last tokens of a sequence.

    The package has no cache: its `generate` calls the model on all tokens for each new one.

    Args:
        kind: "routing_transformer".
        length, window, layers, width: see `build`.
        tokens: how many to generate, at the end of `length` positions.

    Returns:
        A function without arguments. It returns the new tokens, `[1, tokens]`.
    """
    import torch
    from routing_transformer import AutoregressiveWrapper

    model, device = build(length, window, layers, width)
    model = AutoregressiveWrapper(model)
    prompt = torch.ones([1, length - tokens], dtype=torch.long, device=device)
    return lambda: model.generate(prompt, tokens).cpu()
