"""The command line: one thin file per command. Nothing here imports torch before a model is asked for."""
