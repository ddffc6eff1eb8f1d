"""`rt-keras transcribe`: writes down what is said in sound files.

example: rt-keras transcribe --model runs/speech hello.wav
"""

from pathlib import Path

from rt_keras.cli import options


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    options.add_model(parser)
    parser.add_argument("files", nargs="+", metavar="FILE", help="WAV, FLAC, OGG or MP3 files")
    meaning = "number of texts that beam search compares, 1 for none"
    options.add_integers(parser, {"beam_width": (1, meaning)})


def main(args):
    """Prints the text of each file."""
    from rt_keras.data.sound_file import check_sound, read_sound

    options.check_at_least_one(args, "beam_width")
    # All at once, before the model is loaded; the sounds themselves may not fit in memory.
    for name in args.files:
        check_sound(Path(name))
    model = options.load_that("--model", args.model, "transcription", "one of speech")
    texts = {}
    for name in dict.fromkeys(args.files):
        samples = read_sound(Path(name))
        label = f"{name}: " if len(args.files) > 1 else ""
        texts[name] = model.transcribe(samples[None], args.beam_width)[0]
        print(label + texts[name])
    return {"texts": texts}
