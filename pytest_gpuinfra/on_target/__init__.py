"""Programs that run on the machine under test; standard library (3.6+) or torch, nothing of ours."""
