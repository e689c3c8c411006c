"""The command line: ``understudy``, or ``python -m understudy.gateway.cli``."""
