"""The exit statuses of every command, the same in every output format."""

NOTHING_FOUND, FINDINGS, CANNOT_RUN = 0, 1, 2
INTERRUPTED, BROKEN_PIPE = 130, 141
"""What a shell reports for a process that SIGINT or SIGPIPE ended."""
