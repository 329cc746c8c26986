"""The chart's values, read from environment variables and files. An error names the value and what is allowed."""
