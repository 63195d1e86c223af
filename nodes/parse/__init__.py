"""Parse: a reply becomes calls, errors or an answer."""
