import pytest

from rt_keras.ops import block_tiles


@pytest.fixture
def tiles(monkeypatch):
    """Reads small blocks in small tiles too."""
    monkeypatch.setattr(block_tiles, "LEAST_BLOCK_SIZE", 1)
    monkeypatch.setattr(block_tiles, "TILE_SIZE", 4)
    monkeypatch.setattr(block_tiles, "MOST_ROWS", 100)
