"""The running kernel: command line, boot, confidential computing."""
