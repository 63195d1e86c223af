"""Where the command begins: it loads the rest, so that Ctrl-C has an answer from the first moment on."""

import sys


def main() -> int:
    """Run the command `mendgraph`, and return its exit code; 130 for a Ctrl-C that nobody else has heard."""
    try:
        from graph import cli

        return cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("\nmendgraph: stopped by Ctrl-C\n")
        return 130
