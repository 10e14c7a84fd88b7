"""The command `python -m torchwire bench`: torchwire beside stock PyTorch and others, measured in turn.

Words:

    contestant  something that can be measured: stock PyTorch, torchwire, a raw pipe, pyzmq  (contestant.py)
    group       the processes of a contestant that know each other; stopped while it is not their turn  (group.py)
    member      what a process of a group is on its contestant: it joins, calls and leaves  (member.py)
    step        what each group does in its turn  (step.py, and a file for each kind of workload)
    batch       what came of one turn  (batch.py)
    record      all batches of a run, by case and contestant  (record.py)

A run takes stages, one for each size of group; a stage has rounds; in a round each step is done by each group in turn
(schedule.py). A report, a JSON file and a picture are made of the record at the end (report.py, plot.py).

Only the command imports this package. docs/benchmarks.md says how to read what it prints.
"""
