"""Text as every store, file and endpoint can hold it."""


def storable(text: str) -> str:
    """Join the halves of surrogate pairs, and replace single ones: no checkpoint can hold them.

    A resumed run must see what this one saw. Halves come from endpoints that cut a reply between two UTF-16 units, and
    from people whose terminal does.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
