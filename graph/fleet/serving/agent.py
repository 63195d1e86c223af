"""What the configurations beside name: the machine for several users, as the tenants file has them."""

from mendgraph.graph.fleet.serving.machine import served
from mendgraph.graph.fleet.serving.opening import open_desk
from mendgraph.graph.machine.build import build_graph

graph = served(build_graph(), open_desk)
