"""The run report: one self-contained page that shows what a run did, to whoever was not there."""
