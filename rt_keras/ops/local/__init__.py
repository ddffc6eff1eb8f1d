"""Local attention: `neighborhood.py` has the rule of which keys a query sees, `windows.py`
computes whole sequences, `cached.py` chunks and decode steps."""
