"""Text from elsewhere (a model, a file, an endpoint) made fit for a terminal; see `graph.report.words`."""

from graph.report.words import one_line, plain

__all__ = ["one_line", "plain"]
