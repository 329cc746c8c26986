"""Executes plans. The only folder that writes to the API server; it decides nothing."""
