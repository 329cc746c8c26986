"""The duration of the injection webhook's answers: its own TLS server gets the API server's requests."""
