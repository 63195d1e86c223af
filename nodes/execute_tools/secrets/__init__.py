"""What is secret: by value, by shape, by name; and how it is taken out of texts, streams, pages and results."""
