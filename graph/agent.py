"""What `langgraph.json` names: the machine without a checkpointer, because the server brings its own.

harbor's `--agent langgraph` loads it as well, as a file, and names the model in `configurable`.
Its runs may do what the server's operator allows: see `mendgraph.graph.configuration.narrowing.client_context`.
"""

from mendgraph.graph.machine.build import build_machine

graph, _ = build_machine(served=True)
