"""Local attention: `windows.py` for whole sequences, `cached.py` for chunks and decode steps."""
