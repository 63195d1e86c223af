"""The thirteen requests of an ordinary small project, on the embedded model."""
