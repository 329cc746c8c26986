"""How long the injection webhook takes for a pod: its own TLS server, asked as the API server asks it."""
