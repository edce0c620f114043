"""
Recorded hosts with one reading spoilt at a time: no fault is hidden by it, and no pass outlives its source.

    python -m tests.truth [SEED]     every kind of reading of every recording, and how many items that were judged

What is asserted is what holds for any check, old or new (`rules.py`); nothing here knows what a check is about.
"""
