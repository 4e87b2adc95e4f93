"""``fedast ui``: a local page that shows the runs under some folders, live.

``library`` finds the records and keeps them up to date, ``history`` reads what a run has written,
``detail`` and ``compare`` make from it what the page draws, ``app`` answers the browser. The page
itself is in ``static/``: plain modules, no build step. Nothing here writes to a run's folder.
"""
