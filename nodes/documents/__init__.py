"""The names of the five specs that the machine itself does not use, made of the machine's parts."""
