"""What a server may use of ours. A server that goes beyond is ended."""

from typing import Final

START_S: Final = 30.0
"""Seconds in which a server has to start and to answer `initialize`."""

MOST_MESSAGE_BYTES: Final = 8_388_608
"""Bytes of one message, which is a line on stdio and a response over HTTP. It holds an image of 6 MB in base64."""

MOST_UNASKED_BYTES: Final = 67_108_864
"""Bytes that a server may write, on stdout and stderr together, between two requests of ours."""

LONGEST_REASON: Final = 500
"""Bytes of stderr that are kept, and characters of a reason that are shown."""

CLOSE_S: Final = 1.0
"""Seconds that a server has to end after its input has ended, before SIGTERM."""

TERMINATE_S: Final = 1.0
"""Seconds that a server has to end after SIGTERM, before its process group is killed."""

END_S: Final = 4.0
"""Seconds after which a server that is ended is not waited for any longer."""


class McpLimitError(Exception):
    """A server went beyond one of these limits; the text says which one, without the server's name."""
