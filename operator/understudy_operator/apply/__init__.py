"""Does what a plan says. The only place that writes to the API server; decides nothing."""
