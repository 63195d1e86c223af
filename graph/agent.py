"""What `langgraph.json` names: the machine without a checkpointer, because the server brings its own."""

from graph.build import build_graph

graph = build_graph()
