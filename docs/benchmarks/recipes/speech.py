"""Writes recordings with their texts to a folder, from packages of Debian or spoken by `espeak-ng`.

python docs/benchmarks/recipes/speech.py FOLDER fillets [cs|nl]
python docs/benchmarks/recipes/speech.py FOLDER asterisk
python docs/benchmarks/recipes/speech.py FOLDER sentences.txt VOICE [VOICE ...]

- `fillets`: the dialogues of the game Fish Fillets (packages `fillets-ng-data` and, for Czech,
  `fillets-ng-data-cs`).
- `asterisk`: English prompts of a telephone exchange (packages `asterisk-core-sounds-en-wav` and
  `asterisk-core-sounds-en`).
- a text file: each line, spoken by the voices in turn.

The sounds of a scene are in one folder, and a text is kept once, so that neither is in two splits.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

SHARE = Path(os.environ.get("SHARE", "/usr/share"))
LINE = re.compile(r'dialogId\("([^"]+)"[^\n]*\)\s*dialogStr\(\s*"((?:[^"\\]|\\.)*)"\)')


def fillets(language="cs"):
    game = SHARE / "games/fillets-ng"
    for script in sorted(game.glob(f"script/*/dialogs_{language}.lua")):
        scene = script.parent.name
        for name, text in LINE.findall(script.read_text(encoding="utf-8")):
            path = game / "sound" / scene / language / f"{name}.ogg"
            yield f"{scene}/{name}.ogg", path, text


def asterisk():
    listed = SHARE / "doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
    for line in gzip.decompress(listed.read_bytes()).decode("utf-8").splitlines():
        name, _, text = line.partition(":")
        # In brackets, it is the description of a noise.
        if not name.startswith(";") and not text.strip().startswith("["):
            path = SHARE / "asterisk/sounds/en_US_f_Allison" / f"{name}.wav"
            yield f"{name}.wav", path, text


def spoken(folder, texts, voices):
    lines = filter(None, map(plain, Path(texts).read_text(encoding="utf-8").splitlines()))
    for number, line in enumerate(lines):
        name, voice = f"{number // 20:05}/{number:07}.wav", voices[number % len(voices)]
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["espeak-ng", "-v", voice, "-w", path, "--", line], check=True)
        yield name, path, line


def plain(text):
    """A text as it is spoken: lower case, without punctuation."""
    text = unicodedata.normalize("NFC", text.lower())
    kept = (x if x == "'" or unicodedata.category(x)[0] in "LMN" else " " for x in text)
    return " ".join("".join(kept).split())


def main(folder, name, *more):
    known = {"fillets": fillets, "asterisk": asterisk}
    found = known[name](*more) if name in known else spoken(folder, name, more or ["en"])
    texts = {}
    for sound, path, text in found:
        text = plain(text)
        if path.is_file() and text and text not in texts:
            texts[text] = sound
            Path(folder, sound).parent.mkdir(parents=True, exist_ok=True)
            if path != Path(folder, sound):
                shutil.copyfile(path, Path(folder, sound))
    lines = [f"{sound}\t{text}\n" for text, sound in texts.items()]
    Path(folder, "transcripts.tsv").write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines):,} recordings with texts")


if __name__ == "__main__":
    main(*sys.argv[1:])
