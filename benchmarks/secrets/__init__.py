"""The recall of the redactor of secrets."""
