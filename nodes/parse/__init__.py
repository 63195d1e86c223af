"""The room where a reply becomes calls, errors or an answer."""
