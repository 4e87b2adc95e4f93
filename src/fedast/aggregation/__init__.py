"""What the server does with the updates of a round, per task.

They are clipped, weighted and combined into one direction (``aggregators``),
perhaps calibrated by what each client sent before (``calibration``), and the
model takes a step along it (``server_optimizers``). Running statistics are averaged
(``running_statistics``).
"""
