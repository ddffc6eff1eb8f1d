"""Losses: cross entropy over large vocabularies, and connectionist temporal classification."""
