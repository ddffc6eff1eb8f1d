"""Makes a folder of recordings with their texts from packages of Debian.

- `fillets`: the dialogues of the game Fish Fillets, in Czech (package `fillets-ng-data-cs`, about
  100 minutes) or Dutch (`fillets-ng-data-nl`), each with the texts of `fillets-ng-data`. The sounds
  of one scene are in one folder, so that no scene is in two splits.
- `asterisk`: the English prompts of a telephone exchange, of one speaker (package
  `asterisk-core-sounds-en-wav`, with the texts of `asterisk-core-sounds-en`).
"""

import argparse
import gzip
import re
import shutil
import sys
import unicodedata
from pathlib import Path

from rt_keras.files import check_new_folder, whole_folder
from rt_keras.progress import track

# A line of a dialogue: its name, which is that of the sound, and its text.
LINE = re.compile(r'dialogId\("([^"]+)"[^\n]*\)\s*dialogStr\(\s*"((?:[^"\\]|\\.)*)"\)')
GAME, EXCHANGE = "games/fillets-ng", "asterisk/sounds/en_US_f_Allison"
PROMPTS = "doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"


def main(arguments=None):
    """Writes the folder, with the sounds as they are and a list of their texts.

    Args:
        arguments: list of strings. Defaults to None, for those of the command line.

    Returns:
        The exit status: 1 if a package is missing or the folder cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m rt_keras.data.debian_speech",
        description="Writes recordings of Debian's packages with their texts to a folder for "
        "rt-keras train --config speech --data FOLDER.",
    )
    parser.add_argument("name", choices=["fillets", "asterisk"], help="which recordings")
    parser.add_argument("folder", help="the new folder")
    parser.add_argument("--language", default="cs", help="of fillets: cs (default) or nl")
    parser.add_argument("--share", default="/usr/share", help="where packages are installed")
    args = parser.parse_args(arguments)
    share = Path(args.share)
    try:
        check_new_folder(args.folder)
        if args.name == "fillets":
            texts = fillets(share / GAME, args.language)
        else:
            texts = asterisk(share / EXCHANGE, share / PROMPTS)
        write_folder(texts, args.folder)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(texts):,} recordings with texts")
    return 0


def fillets(folder, language):
    """Finds the sounds of the game with their texts.

    A text that several sounds have is kept once, so that no text is in two splits.

    Args:
        folder: path of the game's files, with the subfolders `script` and `sound`.
        language: string, "cs" or "nl".

    Returns:
        A dictionary from names such as "city/vit-hs-klid1.ogg" to pairs of a path and a text.

    Raises:
        FileNotFoundError: if a package is not installed.
    """
    candidates = []
    for script in sorted(folder.glob(f"script/*/dialogs_{language}.lua")):
        scene = script.parent.name
        for name, text in LINE.findall(script.read_text(encoding="utf-8")):
            path = folder / "sound" / scene / language / f"{name}.ogg"
            candidates.append((f"{scene}/{name}.ogg", path, text))
    found = _each_text_once(candidates)
    if not found:
        raise FileNotFoundError(
            f"{folder} has no dialogues in {language!r}; install fillets-ng-data and "
            f"fillets-ng-data-{language}"
        )
    return found


def asterisk(folder, prompts):
    """Finds the prompts of the telephone exchange with their texts.

    Args:
        folder: path of the sounds.
        prompts: path of the list of their texts.

    Returns:
        A dictionary from names such as "digits/1.wav" to pairs of a path and a text.

    Raises:
        FileNotFoundError: if a package is not installed.
    """
    if not prompts.is_file():
        raise FileNotFoundError(f"{prompts} does not exist; install asterisk-core-sounds-en")
    candidates = []
    for line in gzip.decompress(prompts.read_bytes()).decode("utf-8").splitlines():
        name, colon, text = line.partition(":")
        # In brackets, it is the description of a noise.
        if colon and not name.startswith(";") and not text.strip().startswith("["):
            candidates.append((f"{name}.wav", folder / f"{name}.wav", text))
    found = _each_text_once(candidates)
    if not found:
        raise FileNotFoundError(f"{folder} has no sounds; install asterisk-core-sounds-en-wav")
    return found


def _each_text_once(candidates):
    """Returns the first sound of each text, by name.

    Args:
        candidates: list of names, paths and texts. Sounds without a file or a text are left out.
    """
    found, seen = {}, set()
    for name, path, text in candidates:
        text = plain(text)
        if path.is_file() and text and text not in seen:
            seen.add(text)
            found[name] = path, text
    return found


def plain(text):
    """Returns a text as it is spoken: lower case, without punctuation.

    >>> plain("Občané. Zachovejte   klid!")
    'občané zachovejte klid'
    """
    text = unicodedata.normalize("NFC", text.lower())
    # Letters, their marks, and digits.
    kept = (x if x == "'" or unicodedata.category(x)[0] in "LMN" else " " for x in text)
    return " ".join("".join(kept).split())


def write_folder(texts, folder):
    """Copies sounds to a new folder and writes the list of their texts.

    Args:
        texts: dictionary from names to pairs of a path and a text.
        folder: path of the new folder, which is written atomically.
    """
    with whole_folder(folder) as part:
        for name, (path, _) in track(texts.items(), "copying", len(texts), "sounds"):
            new = Path(part, name)
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, new)
        lines = [f"{name}\t{text}\n" for name, (_, text) in texts.items()]
        Path(part, "transcripts.tsv").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
