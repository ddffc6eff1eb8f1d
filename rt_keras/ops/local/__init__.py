"""Local attention: `neighborhood.py` says which keys a query sees, `windows.py` computes whole
sequences, `cached.py` chunks and decode steps."""
