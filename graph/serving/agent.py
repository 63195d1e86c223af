"""What the configurations beside name: the machine for several users, as the tenants file has them."""

from graph.build import build_graph
from graph.serving.machine import served
from graph.serving.opening import open_desk

graph = served(build_graph(), open_desk)
