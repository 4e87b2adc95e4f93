"""One module per command: its arguments and options.

These modules import only click, so that ``fedast --help`` is quick. A command imports what does the
work, the module of the same name in ``fedast.cli``, when it runs.
"""
