"""`rt-keras transcribe`: writes down what is said in sound files."""

from pathlib import Path

from rt_keras import options

# Seconds of a sound that a streaming model hears at a time.
CHUNK_SECONDS = 0.32


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    parser.epilog = "example: rt-keras transcribe --model runs/speech hello.wav"
    options.add_model(parser)
    parser.add_argument("files", nargs="+", metavar="FILE", help="WAV, FLAC, OGG or MP3 files")
    meaning = "print the text while the sound is read, as from a microphone; for a streaming model"
    parser.add_argument("--stream", action="store_true", help=meaning)
    meaning = "number of texts that beam search compares, 1 for none"
    options.add_integers(parser, {"beam_width": (1, meaning)})


def main(args):
    """Prints the text of each file."""
    from rt_keras.data.sound_file import check_sound, read_sound

    options.check_at_least_one(args, "beam_width")
    # All at once, before the model is loaded; the sounds themselves may not fit in memory.
    for name in args.files:
        check_sound(Path(name))
    model, task = options.load_model(args.model)
    if task.generates != "transcription":
        raise ValueError(f"--model {args.model} holds a {task.kind} model, not one of speech")
    if args.stream and not hasattr(model, "stream"):
        raise ValueError(f"--stream needs a model of kind streaming_ctc; it is {task.kind}")
    if args.stream and args.beam_width > 1:
        raise ValueError("--stream and --beam-width are mutually exclusive")
    texts = {}
    for name in dict.fromkeys(args.files):
        samples = read_sound(Path(name))
        label = f"{name}: " if len(args.files) > 1 else ""
        if args.stream:
            print(label, end="", flush=True)
            texts[name] = _stream(model, samples)
        else:
            texts[name] = model.transcribe(samples[None], args.beam_width)[0]
            print(label + texts[name])
    return {"texts": texts}


def _stream(model, samples):
    """Prints a text as it grows, and returns it."""
    from rt_keras.data.wav import SAMPLING_RATE

    size = int(CHUNK_SECONDS * SAMPLING_RATE)
    chunks = [samples[start : start + size] for start in range(0, len(samples), size)]
    text = ""
    for part in model.stream(chunks, max_seconds=len(samples) / SAMPLING_RATE + 1):
        print(part, end="", flush=True)
        text += part
    print()
    return text
