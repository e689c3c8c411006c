"""The turn loop: model, tools, results, and again until there is an answer. Parent and child share it."""
