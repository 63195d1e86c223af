"""Calls and their results in a few words; see `graph.report.words`."""

from graph.report.words import count_of, error_words, result_words, target_of

__all__ = ["count_of", "error_words", "result_words", "target_of"]
