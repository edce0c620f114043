"""
The GPU program that needs no framework: peer transfers by the CUDA driver API, all-reduces by NCCL, through ctypes.

It imports its neighbours in this directory, which travel with it (plan.py),
and runs on Python 3.6 and later with the standard library only.
To run it by hand: `(cat plan.json; sleep 600) | python3 cuda_program.py`, the plan on one line.

It touches on the target: GPU memory within the plan's budget, its own processes, and what supervisor.py and
crew.py name. It takes the target's lock, dies with its standard input, and takes about 4 s for two GPUs.

The plan: plan.py, GpuPlan. Events, one JSON object a line (subjects/transfers/program.py reads them):
    progress   phase, text, done, total, at_s
    plan       what will be done, and by which driver library
    device     one for each device at hand or asked for
    local      one for each device and mechanism on it alone
    pair       one for each directed pair and mechanism, one direction and both at once
    chain      one for each ordered triple and mechanism
    allreduce  one for each arm
    error      fatal or not, kind, reason
    end        always last; complete says whether everything planned has its event
"""

import os

import supervisor
from collective import reduce_in_rank
from ipc_helper import help_owner
from pairs import own_pairs
from program import Program, prepare


def main():
    """Read the plan and do it."""
    plan = supervisor.read_plan()
    if "ptx" not in plan:
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels", "kernels.ptx")) as stream:
            plan["ptx"] = stream.read()
    prepare(plan)
    program = Program("cuda", plan, owner=own_pairs, helper=help_owner, rank=reduce_in_rank, about={})
    program.finish(program.run())


if __name__ == "__main__":
    main()
