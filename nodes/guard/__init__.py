"""May this call run? Each call of a reply is allowed, denied or put to a person, before any effect."""
