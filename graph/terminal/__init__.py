"""What a person sees of a run: parsing, rendering and exit codes of the `mendgraph` command. It decides nothing."""
