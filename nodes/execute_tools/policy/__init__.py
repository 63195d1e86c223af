"""Alerts: what somebody should know of a run. Pure."""
