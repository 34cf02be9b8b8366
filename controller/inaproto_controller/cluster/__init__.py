"""What a cluster is: hosts, switches, links, jobs and their requests."""
