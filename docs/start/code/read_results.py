import fedast

runs = fedast.load("runs/quickstart")
for run in runs:
    times = {name: task.time_to_target for name, task in run.tasks.items()}
    print(run.name, times)

run = runs["fedast-d/seed-1"]
print(run.model("digits-mlp"))  # the trained torch module
fedast.plot.curves(runs).savefig("curves.pdf")
