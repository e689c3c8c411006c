"""Hooks that an agent harness calls: installed into its settings, run by it, sent to the server of a database."""
