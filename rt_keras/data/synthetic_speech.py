"""Makes a folder of synthetic speech from lines of text, spoken by `espeak-ng`.

It is for tests, and for more speech to train on before there are enough recordings.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rt_keras.data.debian_speech import plain
from rt_keras.files import check_new_folder, whole_folder
from rt_keras.progress import track

PROGRAM = "espeak-ng"
# Lines whose sounds are in one folder, and so in one split.
LINES_OF_FOLDER = 20
# Marks of stress, and what separates phonemes.
STRESS, SPACES = re.compile("[ˈˌ]"), re.compile(r"\s+")


def main(arguments=None):
    """Writes the folder, with a list of the texts.

    Args:
        arguments: list of strings. Defaults to None, for those of the command line.

    Returns:
        The exit status: 1 if the program is missing, does not know a voice, or the folder cannot be
        written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m rt_keras.data.synthetic_speech",
        description="Speaks each line of a text with espeak-ng, and writes a folder for rt-keras "
        "train --config speech --data FOLDER.",
    )
    parser.add_argument("texts", help="text file (UTF-8), a sentence a line")
    parser.add_argument("folder", help="the new folder")
    parser.add_argument(
        "--voices", nargs="+", default=["en"], help="voices that take turns, such as cs cs+f3"
    )
    parser.add_argument(
        "--phonemes", action="store_true", help="write phonemes, separated by spaces, not letters"
    )
    args = parser.parse_args(arguments)
    try:
        check_new_folder(args.folder)
        count = write_folder(args.texts, args.folder, args.voices, args.phonemes)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{count:,} sounds")
    return 0


def write_folder(texts, folder, voices, phonemes=False):
    """Speaks each line of a file that is not empty.

    Args:
        texts: path of the file.
        folder: path of the new folder, which is written atomically.
        voices: list of strings, voices of `espeak-ng`.
        phonemes: bool, whether the list has phonemes in IPA. Defaults to False, for letters.

    Returns:
        The number of sounds.

    Raises:
        FileNotFoundError: if `espeak-ng` is not installed.
        ValueError: if there are no lines, or there is no such voice.
    """
    if shutil.which(PROGRAM) is None:
        raise FileNotFoundError(f"{PROGRAM} is not installed, which speaks texts")
    lines = [plain(line) for line in Path(texts).read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        raise ValueError(f"{texts} has no text")
    with whole_folder(folder) as part:
        listed = []
        for number, line in enumerate(track(lines, "speaking", len(lines), "lines")):
            name = f"{number // LINES_OF_FOLDER:05}/{number:07}.wav"
            path, voice = Path(part, name), voices[number % len(voices)]
            path.parent.mkdir(exist_ok=True)
            _run(voice, line, "-w", str(path))
            listed.append(f"{name}\t{phonemes_of(line, voice) if phonemes else line}\n")
        Path(part, "transcripts.tsv").write_text("".join(listed), encoding="utf-8")
    return len(lines)


def phonemes_of(text, voice):
    """Returns the phonemes of a text in IPA, without stress, separated by spaces.

    Args:
        text: string.
        voice: string, a voice of `espeak-ng`, such as "cs".
    """
    found = STRESS.sub("", _run(voice, text, "-q", "--ipa", "--sep= "))
    return SPACES.sub(" ", found).strip()


def _run(voice, text, *options):
    """Runs the program; returns what it prints."""
    command = [PROGRAM, "-v", voice, *options, "--", text]
    result = subprocess.run(command, capture_output=True, check=False)
    if result.returncode:
        message = result.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(f"{PROGRAM} cannot speak with the voice {voice!r}: {' '.join(message)}")
    return result.stdout.decode("utf-8")


if __name__ == "__main__":
    sys.exit(main())
