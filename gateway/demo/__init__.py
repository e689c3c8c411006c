"""The demo: a parent fans out over real files; one child hangs, one is killed, the host dies, nothing is missing."""
