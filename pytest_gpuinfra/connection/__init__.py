"""Ways to reach a target. `base` says what every way offers; `ssh`, `local` and `nested` are the ways."""
