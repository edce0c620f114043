"""Names of many hosts: hostlists, Ansible, Slurm. What is expected of the hosts stands elsewhere."""
