from rt_keras.data import compute_sentence_piece_proto

SOURCE = "NAME\n   alarm - sets it\n\nNOTES\n   alarm() sets alarm()\n\nSEE ALSO\n   time"
TARGET = "NAME\n   alarm - stellt ihn\n\nNOTIZEN\n   alarm() stellt alarm()"


def write_pages(folder, count=60):
    """A folder of parallel pages, with pages in each split."""
    for side, text in (("source", SOURCE), ("target", TARGET)):
        for number in range(count):
            path = folder / side / f"page{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + f"\n   x{number}x and x{number}x")
    return folder


def write_vocabulary(path):
    path.write_bytes(compute_sentence_piece_proto([SOURCE.encode(), TARGET.encode()], 330))
    return path
